"""Published rows of memory, turned into the estimate's own types; never through the job file.

A row: {source, model, model_arch, gpus, tp, pp, vpp, dp, cp, ep, etp, mbs, gbs, seq, recompute, zero, precision,
method, measured_mem_gb, mem_kind, flags, ...}. What is not modelled is told from these alone.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from backend.estimate.estimate import RESERVED_PER_ALLOCATED
from backend.estimate.fit import kind_of_run
from backend.estimate.hugging_face import Tuning, data_parallel_memory
from backend.estimate.layers import Activation, Attention, ModelLayers, model_layers
from backend.estimate.megatron import Run, pipeline_memory
from backend.estimate.megatron_adapters import Adapters
from backend.estimate.parameters import model_parameters
from backend.estimate.plan import Plan
from backend.estimate.stage import Trained
from backend.job.problems import ProblemsError
from backend.job.traits import MEGATRON_LM_MEMORY, TRAITS, MemoryTraits
from benchmarks.published import FUSED_LOSS
from benchmarks.shapes import NotModelled, published_shape
from benchmarks.statistics import MAXIMUM_STAGES, UNREADABLE, Result, Skip, figure, unreadable

GIB = 2.0**30
_TUNERS = "galore|fsdp_qlora|unsloth|hqq|sequence_parallel|new_special_tokens|dora|pissa|olora|muon"
"""What scripts of ms-swift are named after, and the estimate does not know."""
_SIZES = ("gpus", "tp", "pp", "vpp", "dp", "cp", "ep", "etp", "mbs", "gbs", "seq", "zero")
OUTSIDE_GIB = 1.5
"""Context and NCCL, where nvidia-smi was read; the default of cluster.outside_gib."""


def measured_results(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Result], list[Skip]]:
    """Ours beside every row with a memory figure; rows that repeat a case count once."""
    results, skips, seen = [], [], set()
    for number, row in enumerate(rows, 1):
        source, case = "unknown", f"row {number}"
        try:
            if not row.get("measured_mem_gb"):
                continue
            source, case = _source(row), _case(row)
            if case in seen:
                raise NotModelled("the same case again")
            results += _results(row, case)
            seen.add(case)
        except (NotModelled, ProblemsError) as problem:
            skips.append(Skip(source=source, case=case, reason=str(problem)))
        except UNREADABLE as error:
            skips.append(Skip(source=source, case=case, reason=unreadable(error)))
    return results, skips


def _case(row: Mapping[str, Any]) -> str:
    sizes = " ".join(f"{key}{row[key]}" for key in ("tp", "pp", "vpp", "cp", "ep", "mbs", "seq") if row.get(key))
    parts = (row["model"], sizes, row.get("recompute"), row.get("method"), row.get("precision"), row.get("notes"))
    script = _reference(row).rpartition(" ")[2] if "script" in row["source"] else ""
    return " | ".join(str(part) for part in (*parts, script) if part)


def _reference(row: Mapping[str, Any]) -> str:
    return str(row.get("source_ref") or "")


def _source(row: Mapping[str, Any]) -> str:
    return "Megatron-Bridge" if row["source"].startswith("Megatron-Bridge") else str(row["source"])


def _results(row: Mapping[str, Any], case: str) -> list[Result]:
    _refuse(row)
    given = figure(row["measured_mem_gb"])
    if given is None:
        raise NotModelled("no measured figure")
    shape = published_shape(row)
    layers = model_layers(shape)
    peaks = [peak / GIB for peak in _peaks(row, layers)]
    unit = str(row.get("mem_kind") or "GiB")
    measured = given * (1 if "GiB" in unit or "header" in unit else 1e9 / GIB)
    ours = max(peaks)
    if not 0 < ours < math.inf:
        raise NotModelled("no such plan")
    if "reserved" in unit:
        ours *= RESERVED_PER_ALLOCATED
    elif "nvidia-smi" in unit or "header" in unit:
        ours = ours * RESERVED_PER_ALLOCATED + OUTSIDE_GIB
    holders = (row.get("tp") or 1) * (row.get("pp") or 1) * (row.get("ep") or 1)
    rule = 18 * model_parameters(layers) / holders / GIB
    source = _source(row)
    apart = "torchtitan" in source or "DeepSpeed" in source or _is_swift_script(row)
    family = "hugging_face" if apart else "megatron"
    adapted = "lora" in (row.get("method") or "").lower()
    kind = kind_of_run(vision=bool(shape.vision), experts=bool(shape.experts), adapters=adapted)
    result = Result(source=source, case=case, measured=measured, ours=ours, baseline=rule, family=family, kind=kind)
    by_stage = [figure(value) for value in row.get("measured_mem_by_stage_gb") or []]
    if len(by_stage) < 2 or len(by_stage) != len(peaks) or None in by_stage:
        return [result]
    each = [
        Result(source=f"{source}, each stage", case=f"{case}, stage {stage}", measured=real, ours=mine, baseline=rule)
        for stage, (real, mine) in enumerate(zip(by_stage, peaks, strict=True))
    ]
    return [result, *each]


def _peaks(row: Mapping[str, Any], layers: ModelLayers) -> list[float]:
    """Ours for each pipeline stage."""
    source = row["source"]
    if _is_swift_script(row):
        return [_hugging_face(row, layers, *_swift_tuning(row))]
    if "DeepSpeed" in source or (row.get("zero") in (2, 3) and not row.get("fsdp")):
        _refuse_model_parallel(row)
        offload = "offload" in (row.get("method") or "")
        name = f"llamafactory-zero{_needed(row, 'zero')}" + ("-offload" if offload else "")
        return [_hugging_face(row, layers, _traits(name), Tuning(trained=Trained()))]
    if row.get("fsdp"):
        _refuse_model_parallel(row)
        if not row.get("recompute"):
            raise NotModelled("not published: recompute")
        return [_hugging_face(row, layers, _traits("llamafactory-fsdp"), Tuning(trained=Trained()))]
    plan = _megatron_plan(row)
    stages = plan.pipeline * plan.virtual_pipeline
    if not 0 < stages <= MAXIMUM_STAGES or (layers.dense_count + layers.sparse_count) % stages:
        raise NotModelled("layers that do not divide over the stages")
    memories = pipeline_memory(layers, plan, _megatron_memory(row), _megatron_run(row))
    return [float(memory.peak) for memory in memories]


def _refuse_model_parallel(row: Mapping[str, Any]) -> None:
    if (row.get("tp") or 1) * (row.get("pp") or 1) > 1:
        raise NotModelled("sharded parameters with tensor or pipeline parallelism, which no engine here launches")


def _is_swift_script(row: Mapping[str, Any]) -> bool:
    """Whether ms-swift runs it on Hugging Face's Trainer."""
    return "ms-swift" in row["source"] and "megatron/" not in _reference(row)


def _refuse(row: Mapping[str, Any]) -> None:
    source, method = row["source"], row.get("method") or ""
    for key in _SIZES:
        if row.get(key) is not None:
            _needed(row, key)
    if "CI golden" in source:
        raise NotModelled("counted with the golden file")
    if "Figure 1" in source:
        raise NotModelled("computed by its authors, not measured")
    if str(row.get("flags") or "").startswith("header names"):
        raise NotModelled("the script is another variant than its header")
    # torchtitan's float8 is the matrix products' alone: weights stay fp32, what is saved bf16.
    known = ("bf16", "bfloat16", "float8") if "torchtitan" in source else ("bf16", "bfloat16")
    if not str(row.get("precision") or "bf16").lower().startswith(known) or "fp8" in method:
        raise NotModelled("not bf16")
    kind = re.search(r"rlhf_type=(\S+)", method)
    if kind and kind[1] != "dpo":
        raise NotModelled(f"training stage: {kind[1]}")
    for word in ("mbedding", "eranker", "seq_cls"):
        if word in _reference(row):
            raise NotModelled("another head than language modelling")
    tuner = re.search(r"tuner_type=(\S+)", method)
    if tuner and tuner[1] not in ("full", "lora"):
        raise NotModelled(f"tuner: {tuner[1]}")
    found = re.search(rf"/({_TUNERS})", _reference(row))
    if found:
        raise NotModelled(f"tuner: {found[1]}")
    if "ZeRO3" in str(row.get("notes")) and "megatron/" in _reference(row):
        raise NotModelled("the script is another variant than its header")
    if row.get("zero") in (2, 3) and row.get("gpus") == 1:
        raise NotModelled("not published: gpus")
    if "re-gather" in method:
        raise NotModelled("tuner: input gathered again")


def _needed(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if value is None:
        raise NotModelled(f"not published: {key}")
    if isinstance(value, bool) or int(value) != value or value < 0:
        raise NotModelled(f"a field that cannot be read: {key}")
    return int(value)


def _recompute(row: Mapping[str, Any]) -> dict[str, Any]:
    text = str(row.get("recompute") or "none")
    if text.startswith("full"):
        return {"recompute": "full"}
    modules = tuple(re.findall(r"core_attn|moe_act|mla_up_proj|layernorm|mlp|moe\b|shared_experts", text))
    if text.startswith("selective"):
        chosen = modules or (() if "[]" in text else ("core_attn",))
        return {"recompute": "selective" if chosen else "none", "recompute_modules": chosen}
    return {}


def _megatron_plan(row: Mapping[str, Any]) -> Plan:
    method = row.get("method") or ""
    tensor, pipeline, context = _needed(row, "tp"), _needed(row, "pp"), row.get("cp") or 1
    data = row.get("dp") or max(1, _needed(row, "gpus") // (tensor * pipeline * context))
    micro_batch = _needed(row, "mbs")
    # A pack of DPO holds whole pairs within the sequence length.
    pairs = 2 if "rlhf_type=dpo" in method and "packing=true" not in method else 1
    return Plan(
        tensor=tensor,
        pipeline=pipeline,
        virtual_pipeline=row.get("vpp") or 1,
        context=context,
        expert=row.get("ep") or 1,
        expert_tensor=row.get("etp") or 1,
        data=data,
        sequence_parallel=tensor > 1,
        sequence_length=_needed(row, "seq"),
        micro_batch=micro_batch * pairs,
        micro_batches=max(1, (row.get("gbs") or micro_batch * data) // (micro_batch * data)),
        offload_fraction=_offloaded(method),
        context_a2a="SimuMax" in row["source"] and context > 1,
        **_recompute(row),
    )


def _offloaded(method: str) -> float:
    if "optimizer_cpu_offload=true" not in method:
        return 0.0
    found = re.search(r"optimizer_offload_fraction=([\d.]+)", method)
    return float(found[1]) if found else 1.0


def _megatron_memory(row: Mapping[str, Any]) -> MemoryTraits:
    source = row["source"]
    if "ms-swift" in source:
        memory = _traits("swift-megatron")
        fused = memory.fused_logits_bytes or memory.logits_forward_bytes
        return replace(memory, logits_forward_bytes=fused, logits_backward_bytes=fused)
    if "LLaMA-Factory" in source:
        return _traits("llamafactory-megatron")
    if row["model"].startswith("Moonlight"):
        # Its recipe (recipes/moonlight/moonlight_16b.py): 16-bit gradients and moments, fp32 masters.
        return replace(FUSED_LOSS, gradient_bytes=2, optimizer_bytes=8)
    if "SimuMax" in source or "Bridge" in source:
        return FUSED_LOSS
    return MEGATRON_LM_MEMORY


def _megatron_run(row: Mapping[str, Any]) -> Run:
    method = row.get("method") or ""
    adapted = "lora" in method.lower()
    return Run(
        trained=_trained(method),
        adapters=Adapters(rank=_rank(method)) if adapted else None,
        reference="rlhf_type=dpo" in method and not adapted,
    )


def _trained(method: str) -> Trained:
    """ms-swift freezes the vision tower and its projector unless told otherwise."""
    tower, merger = "freeze_vit=false" in method, "freeze_aligner=false" in method
    return Trained(language="freeze_llm=true" not in method, tower=tower, merger=merger, deep_stack=merger)


def _rank(method: str) -> int:
    found = re.search(r"lora_rank=(\d+)", method)
    return int(found[1]) if found else 8


def _traits(engine: str) -> MemoryTraits:
    memory = TRAITS[engine].memory
    if memory is None:
        raise NotModelled(f"engine: {engine}")
    return memory


def _swift_tuning(row: Mapping[str, Any]) -> tuple[MemoryTraits, Tuning]:
    """ms-swift trains bf16 weights with bf16 Adam where DeepSpeed keeps no masters."""
    method = row.get("method") or ""
    if row.get("zero") in (2, 3):
        memory = _traits(f"llamafactory-zero{row['zero']}")
    else:
        ddp = _traits("llamafactory-ddp")
        memory = replace(ddp, weight_bytes=2, gradient_bytes=2, bucket_bytes=2, autocast_bytes=0, optimizer_bytes=4)
    lora = "tuner_type=lora" in method
    quantised = "qlora" in _reference(row)
    return memory, Tuning(
        trained=_trained(method),
        method="qlora" if quantised else "lora" if lora else "full",
        lora_rank=_rank(method),
        liger="use_liger_kernel=true" in method,
        pairs="rlhf_type=dpo" in method,
    )


def _hugging_face(row: Mapping[str, Any], layers: ModelLayers, memory: MemoryTraits, tuning: Tuning) -> float:
    gpus, micro_batch = _needed(row, "gpus"), _needed(row, "mbs")
    data = row.get("dp") or gpus
    single = "(op)" in str(row.get("recompute"))
    full = single or "ms-swift" in row["source"]
    plan = Plan(
        data=data,
        context=row.get("cp") or 1,
        sequence_length=_needed(row, "seq"),
        micro_batch=micro_batch * (2 if tuning.pairs and "packing=true" not in (row.get("method") or "") else 1),
        micro_batches=max(1, (row.get("gbs") or micro_batch * data) // (micro_batch * data)),
        **({"recompute": "full"} if full else _recompute(row)),
    )
    peak = float(data_parallel_memory(layers, plan, memory, tuning).peak)
    return peak + (_single_operators(layers, plan) if single else 0.0)


def _single_operators(layers: ModelLayers, plan: Plan) -> float:
    """What torchtitan's operator-wise checkpointing keeps beside each layer's input: every other matrix product (q, v,
    gate, down) and the attention's output with its statistics (torchtitan/distributed/activation_checkpoint.py)."""
    per_token = 0.0
    for operator in layers.dense.operators:
        if isinstance(operator, Attention):
            per_token += operator.heads * (2 * operator.key_dim + 2 * operator.value_dim + 4)
            per_token += 2 * operator.kv_heads * operator.value_dim
        elif isinstance(operator, Activation):
            per_token += 2 * operator.width + 2 * layers.dense.hidden
    return layers.dense_count * per_token * float(plan.tokens)
