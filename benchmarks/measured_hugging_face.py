"""Replay of published memory of runs under torch DDP, FSDP and DeepSpeed."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.non_torch_memory import FIRST_GIB
from backend.estimate.memory.reserved import reserved_bytes, segmented_bytes
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import StageMemory
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.adapters import CopiedPart, copied_parts
from backend.estimate.model.layers import ModelLayers
from backend.estimate.plan import Plan
from backend.job.memory_traits import SINGLE_SCALES_BYTES, MemoryTraits
from backend.job.model.operators import Activation, Attention, Linear, Norm
from benchmarks.habits import habits_of, says_packing
from benchmarks.machines import published_gpu
from benchmarks.rows import needed, rank, recompute, reference, sequences, stated_bytes, targets, trained, traits
from benchmarks.shapes import NotModelled


def is_hugging_face(row: Mapping[str, Any]) -> bool:
    """Return whether a row uses plain torch modules, not Megatron's."""
    sharded = row.get("zero") in (2, 3) or row.get("fsdp")
    return bool(sharded or "DeepSpeed" in row["source"] or _is_script(row) or row.get("framework") == "transformers")


def _is_script(row: Mapping[str, Any]) -> bool:
    """Return whether the row is an ms-swift script on Hugging Face's Trainer."""
    return "ms-swift" in row["source"] and "megatron/" not in reference(row) and "mcore" not in reference(row)


def hugging_face_memory(row: Mapping[str, Any], layers: ModelLayers) -> StageMemory:
    """Return our memory of a rank. Raises NotModelled.

    Some switches are not published. If a run could not have fitted on its GPU with the usual one, it had the other:
    gradients reduced in every micro-batch (FSDP), and experts in 4 bits (QLoRA with transformers 4).
    """
    if (row.get("model_arch") or {}).get("gelu"):
        layers = _with_layer_norms(layers)
    if "LitGPT" in row["source"]:
        # scripts/convert_hf_checkpoint.py copies a tied embedding to the output layer.
        layers = replace(layers, tied=False)
    tuning = _tuning(row)
    memory = _memory(row, tuning)
    stage = _stage_memory(row, layers, memory, tuning)
    if float(stage.peak) > gpu_gib(row) * 2**30:
        memory = replace(memory, accumulates_whole=False)
        tuning = replace(tuning, packs_experts=True)
        stage = _stage_memory(row, layers, memory, tuning)
    return stage


def _with_layer_norms(layers: ModelLayers) -> ModelLayers:
    """Return the layers of a model that `model_arch` describes as a GPT, whose norms are torch's LayerNorm."""
    kinds = [
        replace(
            kind, operators=tuple(replace(op, layer_norm=True) if isinstance(op, Norm) else op for op in kind.operators)
        )
        for kind in (*layers.kinds, layers.output)
    ]
    return replace(layers, kinds=tuple(kinds[:-1]), output=kinds[-1])


def gpu_gib(row: Mapping[str, Any]) -> float:
    """Return the memory of the row's GPU; infinity if it is not published."""
    hardware = str(row.get("hardware"))
    stated = re.search(r"(\d+) ?GB", hardware)
    if stated:
        return float(stated[1])
    try:
        return published_gpu(hardware).memory_gib
    except NotModelled:
        return float("inf")


def reserved_of_row(row: Mapping[str, Any], memory: StageMemory) -> float:
    """Return what torch reserves on a GPU of the row's size.

    ms-swift's scripts and torchtitan set expandable segments, and rows that say so. Other runs are taken to have
    torch's default.
    """
    least = float(reserved_bytes(memory, _gap_beside(row)))
    notes = str(row.get("notes"))
    segmented = row.get("framework") == "transformers" or habits_of(row).segmented
    # torchtitan's launcher sets them since commit a5e57e4 of 2024-10-22.
    segmented = segmented or ("torchtitan" in row["source"] and bool(re.search(r"\b2024-0\d\b", notes)))
    if "expandable segments" in notes or not segmented:
        return least
    fixed = habits_of(row).fixed_lengths or says_packing(row)
    most = float(segmented_bytes(memory, "fixed" if fixed else "varied"))
    # Before it fails, torch returns the gaps to the GPU.
    return max(least, min(most, (gpu_gib(row) - FIRST_GIB) * 2**30))


def _gap_beside(row: Mapping[str, Any]) -> float:
    """Return the bytes of a logit at the peak beside which transformers' loss leaves a gap; 0 for another loss.

    torchtitan's loss leaves it too, unless it is compiled: its 16-bit logits are freed before backward, after their
    fp32 copy was made (train.py `del pred`).
    """
    tuning = _tuning(row)
    own_loss = any(name in row["source"] for name in ("InternEvo", "LitGPT", "Answer.AI", "torchtune"))
    own_loss = own_loss or _compiles_loss(row)
    return 0.0 if own_loss or tuning.liger or tuning.pairs else _memory(row, tuning).logits_backward_bytes


def _refuse_sharding(row: Mapping[str, Any]) -> None:
    """Raise NotModelled for sharding that no engine here launches."""
    if (row.get("tp") or 1) * (row.get("pp") or 1) > 1 and not _is_script(row):
        raise NotModelled("sharded parameters with tensor or pipeline parallelism, which no engine here launches")
    if row.get("fsdp") and (row.get("ep") or 1) > 1:
        raise NotModelled("FSDP with expert parallelism, which no engine here launches")
    if "one FSDP unit" in str(row.get("notes")):
        raise NotModelled("FSDP that wraps no layers, which no engine here launches")


def _stage_memory(row: Mapping[str, Any], layers: ModelLayers, memory: MemoryTraits, tuning: Tuning) -> StageMemory:
    _refuse_sharding(row)
    if row.get("fsdp") and not row.get("recompute"):
        raise NotModelled("not published: recompute")
    gpus, micro_batch = needed(row, "gpus"), needed(row, "mbs")
    context = row.get("cp") or 1
    copies = row.get("dp") or gpus // context
    single = "(op)" in str(row.get("recompute"))
    # torchtitan reduces gradients in every micro-batch.
    counted = None if "torchtitan" in row["source"] else row.get("gbs")
    plan = Plan(
        # FSDP and ZeRO divide the states over the ranks of a sequence too (accelerate 1.13 parallelism_config.py
        # dp_shard_cp; torchtitan distributed/parallel_dims.py, mesh fsdp; DeepSpeed's seq_data_parallel_group).
        data=copies * context,
        context=context,
        attention="math" if _runs_math_kernel(row) else "fused",
        sequence_length=needed(row, "seq"),
        micro_batch=micro_batch * sequences(row.get("method") or ""),
        micro_batches=max(1, (counted or micro_batch * copies) // (micro_batch * copies)),
        images=micro_batch * (row.get("images") or 0),
        patches=TILE_PATCHES if row.get("images") else 0,
        **({"recompute": "full"} if single or "ms-swift" in row["source"] else recompute(row)),
    )
    stage = data_parallel_memory(layers, plan, memory, tuning)
    if habits_of(row).sums_in_fp32 and row.get("fsdp") and plan.micro_batches > 1:
        trained_count = stage.parameters.trained_dense + stage.parameters.trained_expert
        stage = replace(stage, gradients=stage.gradients + (4 - memory.gradient_bytes) * trained_count)
    more = _single_operators(layers, plan, "compile" in str(row.get("notes"))) if single else 0.0
    if "LitGPT" in row["source"]:
        more = _lit_gpt_bytes(layers, plan, tuning)
    elif row.get("use_cache"):
        # They are freed after the forward pass, before the loss needs most.
        later = 1 - memory.logits_forward_bytes / memory.logits_backward_bytes
        more = max(0.0, _cache_bytes(layers, plan) - later * float(stage.logits))
    return replace(stage, activations=stage.activations + more)


def _memory(row: Mapping[str, Any], tuning: Tuning) -> MemoryTraits:
    plain = row.get("framework") == "transformers"
    offload = "offload" in (row.get("method") or "")
    if row.get("fsdp"):
        memory = _fsdp_memory(row)
    elif row.get("zero") in (2, 3) or not (plain or _is_script(row)):
        memory = traits(f"llamafactory-zero{needed(row, 'zero')}" + ("-offload" if offload else ""))
        if "offload of the optimizer" in (row.get("method") or ""):
            memory = replace(memory, offloads="optimizer")
        memory = replace(memory, reduce_bucket_elements=row.get("reduce_bucket") or memory.reduce_bucket_elements)
    elif _has_masters(row):
        memory = traits("llamafactory-ddp")
    else:
        # bf16 weights and bf16 Adam: DeepSpeed with no master weights.
        ddp = traits("llamafactory-ddp")
        memory = replace(ddp, weight_bytes=2, gradient_bytes=2, bucket_bytes=2, autocast_bytes=0, optimizer_bytes=4)
    if tuning.pairs:
        # 16-bit logits and their log-softmax; its gradient and that of its input (ms-swift's
        # swift/rlhf_trainers/rlhf_mixin.py get_per_token_logps, trl's trainer/utils.py selective_log_softmax).
        memory = replace(memory, pairs_forward_bytes=4, pairs_kept_bytes=2, logits_backward_bytes=6)
    if row.get("optimizer") == "adamw_torch":
        # As wide as the moments (torch 2.4 optim/adam.py _multi_tensor_adam, exp_avg_sq_sqrt).
        memory = replace(memory, step_gradient_bytes=memory.optimizer_bytes / 2)
    if plain:
        memory = _loss_of_stack(row, memory)
    if "LitGPT" in row["source"]:
        # bnb.nf4, not bnb.nf4-dq (config_hub/finetune/*/qlora.yaml).
        memory = replace(memory, scale_bytes=SINGLE_SCALES_BYTES)
    if _compiles_loss(row):
        memory = replace(memory, logits_forward_bytes=COMPILED_LOSS[0], logits_backward_bytes=COMPILED_LOSS[1])
    return stated_bytes(row, memory)


def _fsdp_memory(row: Mapping[str, Any]) -> MemoryTraits:
    memory = traits("llamafactory-fsdp")
    if "torchtitan" in row["source"]:
        memory = replace(memory, passing_gradient_bytes=4)
    if "prime-rl" in row["source"]:
        # It never calls set_requires_gradient_sync: every micro-batch is reduced, in fp32 (trainer/model.py).
        memory = replace(memory, passing_gradient_bytes=4, accumulates_whole=False)
    if row.get("zero") == 2:
        # SHARD_GRAD_OP: all parameters stay gathered.
        memory = replace(memory, live_elements=math.inf)
    if row.get("framework") == "transformers" and not _has_masters(row):
        memory = replace(memory, weight_bytes=2, gradient_bytes=2, optimizer_bytes=4)
    memory = replace(memory, offloads="everything") if "offload" in (row.get("method") or "") else memory
    memory = replace(memory, keeps_inputs="reentrant" in (row.get("flags") or ""))
    if "InternEvo" in row["source"]:
        memory = replace(memory, **INTERN_EVO)
    return memory


def _has_masters(row: Mapping[str, Any]) -> bool:
    """Return whether a row of torch's FSDP or DDP names an engine of the product, whose weights are fp32, and does not
    say that it trains in 16 bits alone."""
    return bool(row.get("engine")) and not row.get("pure_bf16")


TILE_PATCHES = (448 // 14) ** 2
"""Patches of an image of MiniCPM-V: one tile of 448 x 448 pixels, because the sizes of the images are not published. It
cuts a large image into up to ten, with which its full fine-tuning with offloading is 1 % off, and its LoRA 7 % too
high."""
INTERN_EVO: dict[str, Any] = {
    "weight_bytes": 2,
    "gradient_bytes": 2,
    "optimizer_bytes": 12,
    "step_gradient_bytes": 8,
    "accumulates_whole": False,
}
"""InternEvo's FSDP: 16-bit shards and gradients, fp32 copies of the weights, and at the step fp32 gradients and the
temporaries of AdamW (internlm/solver/optimizer/fsdp_optimizer.py step; torch 2.0 optim/adamw.py _multi_tensor_adamw).
Every micro-batch is reduced: its scheduler has no no_sync (internlm/core/scheduler/no_pipeline_scheduler.py)."""
EARLY_LOSS = (12, 16)
"""Bytes per logit in transformers before 4.45: the model returns fp32 logits, and the loss copies them without the last
token (4.40 models/llama/modeling_llama.py)."""
SHIFTED_LOSS = (14, 12)
"""transformers 4.45 to 4.51: the loss casts the logits and copies them without the last token (loss/loss_utils.py)."""
COMPILED_LOSS = (4, 4)
"""torchtitan from 2025-04 compiles the loss: 16-bit logits and their gradient (pytorch/torchtitan pull request 1033;
pull request 996 measured 49.6 GiB before)."""


def _loss_of_stack(row: Mapping[str, Any], memory: MemoryTraits) -> MemoryTraits:
    """Return the traits with the loss of the transformers that the row ran.

    Only a row with an optimizer tells its age: adamw_torch was transformers' default before 5.
    """
    if row.get("optimizer") != "adamw_torch":
        return memory
    early = re.search(r"\b202[34]\b", f"{row['source']} {row.get('notes')}")
    forward, backward = EARLY_LOSS if early else SHIFTED_LOSS
    return replace(memory, logits_forward_bytes=forward, logits_backward_bytes=backward)


def _compiles_loss(row: Mapping[str, Any]) -> bool:
    notes = str(row.get("notes"))
    recent = "B200" in str(row.get("hardware")) or re.search(r"\b(2025(?!-0[1-3])|202[6-9])\b", notes)
    return "torchtitan" in row["source"] and "compile" in notes and bool(recent)


def _fuses_functions(row: Mapping[str, Any]) -> bool:
    """Return whether norms and gated functions save their inputs alone, as Liger's kernels do. torch.compile computes
    them again from what GEMMs and attention save anyway (torch 2.13 _functorch/partitioners.py
    min_cut_rematerialization_partition)."""
    return any(word in str(row.get("notes")) for word in ("compile", "fused norms"))


def _runs_math_kernel(row: Mapping[str, Any]) -> bool:
    """Return whether torch's SDPA computes attention over shared keys with its math kernel: on GPUs without
    FlashAttention, since transformers asks for shared keys (pull request 39412 of 2025-07)."""
    if not _is_script(row) and row.get("framework") != "transformers":
        return False
    has_no_flash_attention = re.search(r"\b(V100|T4|RTX 8000)\b", str(row.get("hardware")))
    return bool(has_no_flash_attention and re.search(r"\b202[6-9]\b", str(row.get("notes"))))


def _tuning(row: Mapping[str, Any]) -> Tuning:
    method = row.get("method") or ""
    compiled = _fuses_functions(row)
    if not _is_script(row) and row.get("framework") != "transformers":
        return Tuning(trained=Trained(), fused_norms=compiled, fused_head_norms=compiled, fused_functions=compiled)
    quantised = method.startswith("qlora") or (_is_script(row) and "qlora" in reference(row))
    lora = "tuner_type=lora" in method or method.startswith("lora")
    kernels = "use_liger_kernel=true" in method or bool(row.get("liger"))
    # Liger's fused loss stores no logits.
    liger = kernels and not row.get("logits_bytes")
    fused = kernels or compiled
    upcasts_rest = row.get("base_bytes") == 4 or (quantised and not _is_script(row) and habits_of(row).upcasts_rest)
    return Tuning(
        trained=trained(method),
        method="qlora" if quantised else "lora" if lora else "full",
        lora_rank=rank(method),
        lora_targets=targets(method),
        copied=_copied(method),
        liger=liger,
        fused_norms=fused,
        fused_head_norms=fused,
        fused_functions=fused,
        drops=bool(re.search(r"lora_dropout=0\.\d", method)),
        upcasts_rest=upcasts_rest,
        # bitsandbytes returns products of 4-bit weights in the precision of their input (nn/modules.py Linear4bit).
        single_precision=upcasts_rest and row.get("autocast") is False,
        pairs="rlhf_type=dpo" in method,
        reference="rlhf_type=dpo" in method,
    )


def _copied(method: str) -> frozenset[CopiedPart]:
    """Return what a run trains whole beside its adapters."""
    names = re.search(r"modules_to_save=(\S+)", method)
    return copied_parts(names[1]) if names else frozenset()


def _lit_gpt_bytes(layers: ModelLayers, plan: Plan, tuning: Tuning) -> float:
    """Return what LitGPT's own modules save besides what transformers' modules do.

    Its norm keeps a trained product's input in fp32. The values are a view of the output of one projection, which stays
    allocated, or they are repeated with the keys for every query head. The adapters of this projection share one
    dropout, which keeps a mask (litgpt/model.py RMSNorm and CausalSelfAttention, litgpt/lora.py LoRAQKVLinear, of
    2023-10 and later; lora_dropout is 0.05 in finetune/lora.py and config_hub/finetune).

    A product of 4-bit weights saves its input too, in the bitsandbytes of its pyproject.toml until 2024-12 (0.42.0
    autograd/_functions.py MatMul4Bit; 0.43.3 does not). That of the output projection is the attention's output.
    """
    per_token = 0.0
    for operator in layers.kinds[0].operators:
        if isinstance(operator, Norm) and not (operator.layer_norm or tuning.adapters):
            per_token += 2 * operator.width
        elif isinstance(operator, Attention):
            repeated = operator.heads - operator.kv_heads
            joined = (operator.heads + operator.kv_heads) * operator.key_dim
            per_token += 2 * (repeated * (operator.key_dim + operator.value_dim) if repeated else joined)
        elif isinstance(operator, Linear) and tuning.method == "qlora" and operator.name != "o":
            per_token += 2 * operator.inputs
    if tuning.adapters:
        per_token += layers.output.hidden
    return layers.count * per_token * float(plan.tokens)


def _cache_bytes(layers: ModelLayers, plan: Plan) -> float:
    """Return the keys and values of all layers that transformers' model returns with `use_cache`, its default. Its own
    gradient checkpointing turns that off, and FSDP's does not."""
    attentions = [op for op in layers.kinds[0].operators if isinstance(op, Attention)]
    per_token = sum(2 * op.kv_heads * (op.key_dim + op.value_dim) for op in attentions)
    return layers.count * per_token * float(plan.tokens)


def _single_operators(layers: ModelLayers, plan: Plan, is_compiled: bool) -> float:
    """Return what torchtitan's operator-wise checkpointing saves besides each layer's input.

    It saves every second GEMM (q, v, gate, down), the output of the attention with its statistics, and no grouped GEMM
    of experts (torchtitan/distributed/activation_checkpoint.py). Nothing in backward reads the output of `down`, so a
    compiled layer does not save it (torch 2.13 _functorch/partitioners.py min_cut_rematerialization_partition).
    """
    per_token = 0.0
    for operator in layers.kinds[0].operators:
        if isinstance(operator, Attention):
            per_token += operator.heads * (2 * operator.key_dim + 2 * operator.value_dim + 4)
            per_token += 2 * operator.kv_heads * operator.value_dim
        elif isinstance(operator, Activation) and operator.module != "moe":
            per_token += 2 * operator.width + (0 if is_compiled else 2 * layers.output.hidden)
    return layers.count * per_token * float(plan.tokens)
