"""Replay of published memory of runs under torch DDP, FSDP and DeepSpeed."""

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
from backend.job.model.operators import Activation, Attention
from benchmarks.habits import habits_of, says_packing
from benchmarks.machines import published_gpu
from benchmarks.rows import needed, rank, recompute, reference, sequences, targets, trained, traits
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
    tuning = _tuning(row)
    memory = _memory(row, tuning)
    stage = _stage_memory(row, layers, memory, tuning)
    if float(stage.peak) > gpu_gib(row) * 2**30:
        memory = replace(memory, accumulates_whole=False)
        tuning = replace(tuning, packs_experts=True)
        stage = _stage_memory(row, layers, memory, tuning)
    return stage


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

    ms-swift's scripts and torchtitan set expandable segments. Other runs are taken to have torch's default.
    """
    least = float(reserved_bytes(memory, _gap_beside(row)))
    if row.get("framework") != "transformers" and not habits_of(row).segmented:
        return least
    fixed = habits_of(row).fixed_lengths or says_packing(row)
    most = float(segmented_bytes(memory, "fixed" if fixed else "varied"))
    # Before it fails, torch returns the gaps to the GPU.
    return max(least, min(most, (gpu_gib(row) - FIRST_GIB) * 2**30))


def _gap_beside(row: Mapping[str, Any]) -> float:
    """Return the bytes of a logit at the peak beside which transformers' loss leaves a gap; 0 for another loss."""
    tuning = _tuning(row)
    own_loss = any(name in row["source"] for name in ("torchtitan", "InternEvo", "LitGPT", "Answer.AI", "torchtune"))
    return 0.0 if own_loss or tuning.liger or tuning.pairs else _memory(row, tuning).logits_backward_bytes


def _stage_memory(row: Mapping[str, Any], layers: ModelLayers, memory: MemoryTraits, tuning: Tuning) -> StageMemory:
    if (row.get("tp") or 1) * (row.get("pp") or 1) > 1 and not _is_script(row):
        raise NotModelled("sharded parameters with tensor or pipeline parallelism, which no engine here launches")
    if row.get("fsdp") and not row.get("recompute"):
        raise NotModelled("not published: recompute")
    gpus, micro_batch = needed(row, "gpus"), needed(row, "mbs")
    data = row.get("dp") or gpus
    single = "(op)" in str(row.get("recompute"))
    # torchtitan reduces gradients in every micro-batch.
    counted = None if "torchtitan" in row["source"] else row.get("gbs")
    plan = Plan(
        data=data,
        context=row.get("cp") or 1,
        sequence_length=needed(row, "seq"),
        micro_batch=micro_batch * sequences(row.get("method") or ""),
        micro_batches=max(1, (counted or micro_batch * data) // (micro_batch * data)),
        images=micro_batch * (row.get("images") or 0),
        patches=TILE_PATCHES if row.get("images") else 0,
        **({"recompute": "full"} if single or "ms-swift" in row["source"] else recompute(row)),
    )
    stage = data_parallel_memory(layers, plan, memory, tuning)
    if habits_of(row).sums_in_fp32 and row.get("fsdp") and plan.micro_batches > 1:
        trained_count = stage.parameters.trained_dense + stage.parameters.trained_expert
        stage = replace(stage, gradients=stage.gradients + (4 - memory.gradient_bytes) * trained_count)
    return replace(stage, activations=stage.activations + _single_operators(layers, plan)) if single else stage


def _memory(row: Mapping[str, Any], tuning: Tuning) -> MemoryTraits:
    plain = row.get("framework") == "transformers"
    offload = "offload" in (row.get("method") or "")
    if row.get("fsdp"):
        memory = traits("llamafactory-fsdp")
        if "torchtitan" in row["source"]:
            memory = replace(memory, passing_gradient_bytes=4)
        if plain:
            memory = replace(memory, weight_bytes=2, gradient_bytes=2, optimizer_bytes=4)
        memory = replace(memory, offloads="everything") if offload else memory
        memory = replace(memory, keeps_inputs="reentrant" in (row.get("flags") or ""))
        if "InternEvo" in row["source"]:
            memory = replace(memory, **INTERN_EVO)
    elif row.get("zero") in (2, 3) or not (plain or _is_script(row)):
        memory = traits(f"llamafactory-zero{needed(row, 'zero')}" + ("-offload" if offload else ""))
        if "offload of the optimizer" in (row.get("method") or ""):
            memory = replace(memory, offloads="optimizer")
        memory = replace(memory, reduce_bucket_elements=row.get("reduce_bucket") or memory.reduce_bucket_elements)
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
    if row.get("logits_bytes"):
        forward, backward = row["logits_bytes"]
        memory = replace(memory, logits_forward_bytes=forward, logits_backward_bytes=backward)
    return memory


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
    recent = "B200" in str(row.get("hardware")) or re.search(r"\b202[5-9]\b", notes)
    return "torchtitan" in row["source"] and "compile" in notes and bool(recent)


def _tuning(row: Mapping[str, Any]) -> Tuning:
    method = row.get("method") or ""
    if not _is_script(row) and row.get("framework") != "transformers":
        return Tuning(trained=Trained())
    quantised = method.startswith("qlora") or (_is_script(row) and "qlora" in reference(row))
    lora = "tuner_type=lora" in method or method.startswith("lora")
    return Tuning(
        trained=trained(method),
        method="qlora" if quantised else "lora" if lora else "full",
        lora_rank=rank(method),
        lora_targets=targets(method),
        copied=_copied(method),
        liger="use_liger_kernel=true" in method,
        upcasts_rest=quantised and not _is_script(row) and habits_of(row).upcasts_rest,
        pairs="rlhf_type=dpo" in method,
        reference="rlhf_type=dpo" in method,
    )


def _copied(method: str) -> frozenset[CopiedPart]:
    """Return what a run trains whole beside its adapters."""
    names = re.search(r"modules_to_save=(\S+)", method)
    return copied_parts(names[1]) if names else frozenset()


def _single_operators(layers: ModelLayers, plan: Plan) -> float:
    """Return what torchtitan's operator-wise checkpointing saves besides each layer's input.

    It saves every second GEMM (q, v, gate, down) and the output of the attention with its statistics
    (torchtitan/distributed/activation_checkpoint.py).
    """
    per_token = 0.0
    for operator in layers.kinds[0].operators:
        if isinstance(operator, Attention):
            per_token += operator.heads * (2 * operator.key_dim + 2 * operator.value_dim + 4)
            per_token += 2 * operator.kv_heads * operator.value_dim
        elif isinstance(operator, Activation):
            per_token += 2 * operator.width + 2 * layers.output.hidden
    return layers.count * per_token * float(plan.tokens)
