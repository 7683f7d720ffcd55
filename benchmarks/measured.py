"""Published memory rows, converted to the types of the estimate without the job file.

A row: {source, model, model_arch, gpus, tp, pp, vpp, dp, cp, ep, etp, mbs, gbs, seq, recompute, zero, precision,
method, measured_mem_gb, mem_kind, flags, ...}. Only these fields decide which rows are not modelled.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from backend.estimate.memory.fit import kind_of_run
from backend.estimate.memory.fp8 import fp8_of_recipe
from backend.estimate.memory.megatron import pipeline_memory
from backend.estimate.memory.megatron_adapters import Adapters
from backend.estimate.memory.megatron_layer import Run
from backend.estimate.memory.non_torch_memory import FIRST_GIB, groups_gib
from backend.estimate.memory.reserved import RESERVED_PER_ALLOCATED, segmented_bytes
from backend.estimate.memory.terms import StageMemory
from backend.estimate.memory.worst_microbatch import worst_length
from backend.estimate.model.layers import ModelLayers
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.plan import Plan
from backend.job.memory_traits import MEGATRON_LM_MEMORY, Fp8, MemoryTraits
from backend.job.problems import ProblemsError
from benchmarks.errors import MAXIMUM_STAGES, UNREADABLE, Result, Skip, figure, unreadable
from benchmarks.habits import OLD_TE_LOSS_BYTES, habits_of, has_unknown_lengths
from benchmarks.measured_hugging_face import gpu_gib, hugging_face_memory, is_hugging_face, reserved_of_row
from benchmarks.own_runs import is_own, own_result
from benchmarks.published import FUSED_LOSS
from benchmarks.rows import needed, rank, recompute, reference, sequences, stated_bytes, targets, trained, traits
from benchmarks.shapes import NotModelled, published_shape
from benchmarks.timed_plan import layer_cut, sequence_parallel

GIB = 2.0**30
_TUNERS = "galore|fsdp_qlora|unsloth|hqq|sequence_parallel|new_special_tokens|dora|pissa|olora|muon"
"""Names of ms-swift scripts for methods that the estimate does not model."""
_SWIFT_4 = re.compile(r"ms-swift 4\.[0-3]\b")
"""Words of a row for ms-swift 4.0 to 4.3, whose Megatron accumulates gradients in bf16 up to 4.3.1: wrap_model gives
accumulate_allreduce_grads_in_fp32 to no field of DistributedDataParallelConfig (4.1.2
swift/megatron/utils/megatron_lm_utils.py; 4.3.2 does: pull request 9590). Their cross entropy is Transformer Engine's
from its version 2.8 on (megatron_args.py __post_init__; the documentation recommends 2.12)."""
_SIZES = ("gpus", "tp", "pp", "vpp", "dp", "cp", "ep", "etp", "mbs", "gbs", "seq", "zero")
_GPUS_PER_NODE = 8


def measured_results(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Result], list[Skip]]:
    """Return our estimate for every row with a memory figure, and the skipped rows. A case that repeats counts once."""
    results, skips, cases = [], [], set()
    for number, row in enumerate(rows, 1):
        source, case = "unknown", f"row {number}"
        try:
            if not row.get("measured_mem_gb"):
                continue
            source, case = _source(row), _case(row)
            if case in cases:
                raise NotModelled("the same case again")
            results += [own_result(row)] if is_own(row) else _results(row, case)
            cases.add(case)
        except (NotModelled, ProblemsError) as problem:
            skips.append(Skip(source=source, case=case, reason=str(problem)))
        except UNREADABLE as error:
            skips.append(Skip(source=source, case=case, reason=unreadable(error)))
    return results, skips


def _case(row: Mapping[str, Any]) -> str:
    sizes = " ".join(f"{key}{row[key]}" for key in ("tp", "pp", "vpp", "cp", "ep", "mbs", "seq") if row.get(key))
    parts = (row["model"], sizes, row.get("recompute"), row.get("method"), row.get("precision"), row.get("notes"))
    script = reference(row).rpartition(" ")[2] if "script" in row["source"] else ""
    return " | ".join(str(part) for part in (*parts, script) if part)


def _source(row: Mapping[str, Any]) -> str:
    return "Megatron-Bridge" if row["source"].startswith("Megatron-Bridge") else str(row["source"])


def _results(row: Mapping[str, Any], case: str) -> list[Result]:
    _refuse(row)
    published = figure(row["measured_mem_gb"])
    if published is None:
        raise NotModelled("no measured figure")
    shape = published_shape(row)
    layers = model_layers(shape, megatron=not is_hugging_face(row))
    memories = _memories(row, layers)
    peaks = [float(memory.peak) / GIB for memory in memories]
    unit = str(row.get("mem_kind") or "GiB")
    measured = published * (1 if "GiB" in unit or "header" in unit else 1e9 / GIB)
    ours = max(peaks)
    if not 0 < ours < math.inf:
        raise NotModelled("no such plan")
    if "reserved" in unit:
        ours = _reserved_gib(row, memories)
    elif "nvidia-smi" in unit or "header" in unit:
        ours = _reserved_gib(row, memories) + _outside_gib(row)
    holders = (row.get("tp") or 1) * (row.get("pp") or 1) * (row.get("ep") or 1)
    rule = 18 * model_parameters(layers) / holders / GIB
    source = _source(row)
    family = "hugging_face" if is_hugging_face(row) else "megatron"
    adapted = "lora" in (row.get("method") or "").lower()
    kind = kind_of_run(vision=bool(shape.vision), experts=bool(shape.experts), adapters=adapted)
    result = Result(
        source=source,
        case=case,
        measured=measured,
        ours=ours,
        baseline=rule,
        family=family,
        kind=kind,
        unknown_lengths=has_unknown_lengths(row),
    )
    by_stage = [figure(value) for value in row.get("measured_mem_by_stage_gb") or []]
    if len(by_stage) < 2 or len(by_stage) != len(peaks) or None in by_stage:
        return [result]
    stages = [
        Result(
            source=f"{source}, each stage", case=f"{case}, stage {stage}", measured=read, ours=estimated, baseline=rule
        )
        for stage, (read, estimated) in enumerate(zip(by_stage, peaks, strict=True))
    ]
    return [result, *stages]


def _outside_gib(row: Mapping[str, Any]) -> float:
    """Return the context and NCCL memory that nvidia-smi includes."""
    if is_hugging_face(row):
        return FIRST_GIB
    swift = "ms-swift" in row["source"]
    groups = groups_gib(_megatron_plan(row), gpus_per_node=_GPUS_PER_NODE, logs_memory=swift)
    return FIRST_GIB + float(groups)


def _reserved_gib(row: Mapping[str, Any], memories: Sequence[StageMemory]) -> float:
    """Return what torch reserves on the stage that needs most."""
    if is_hugging_face(row):
        return reserved_of_row(row, memories[0]) / GIB
    least = RESERVED_PER_ALLOCATED * max(float(memory.peak) for memory in memories) / GIB
    if not habits_of(row).segmented and habits_of(row).flash:
        return least
    # Before it fails, torch returns the gaps to the GPU.
    most = max(float(segmented_bytes(memory, "fixed")) for memory in memories) / GIB
    return max(least, min(most, gpu_gib(row) - FIRST_GIB))


def _memories(row: Mapping[str, Any], layers: ModelLayers) -> Sequence[StageMemory]:
    """Return our memory of each pipeline stage."""
    if is_hugging_face(row):
        return [hugging_face_memory(row, layers)]
    plan = _megatron_plan(row)
    stages = plan.pipeline * plan.virtual_pipeline
    if not 0 < stages <= MAXIMUM_STAGES:
        raise NotModelled("layers that do not divide over the stages")
    plan = replace(plan, **layer_cut(layers.count, stages))
    return pipeline_memory(layers, plan, _megatron_memory(row), _megatron_run(row))


def _refuse(row: Mapping[str, Any]) -> None:
    source, method = row["source"], row.get("method") or ""
    for key in _SIZES:
        if row.get(key) is not None:
            needed(row, key)
    if "CI golden" in source:
        raise NotModelled("counted with the golden file")
    if "Figure 1" in source:
        raise NotModelled("computed by its authors, not measured")
    if str(row.get("flags") or "").startswith("header names"):
        raise NotModelled("the script is another variant than its header")
    # torchtitan's float8 applies only to GEMMs: weights stay fp32, saved activations bf16.
    precisions = ("bf16", "bfloat16", "fp16", *(("float8",) if "torchtitan" in source else ()))
    if not str(row.get("precision") or "bf16").lower().startswith(precisions) and not _fp8(row):
        raise NotModelled("not 16 bits")
    kind = re.search(r"rlhf_type=(\S+)", method)
    if kind and kind[1] != "dpo":
        raise NotModelled(f"training stage: {kind[1]}")
    for head in ("mbedding", "eranker", "seq_cls"):
        if head in reference(row):
            raise NotModelled("another head than language modelling")
    tuner = re.search(r"tuner_type=(\S+)", method)
    if tuner and tuner[1] not in ("full", "lora"):
        raise NotModelled(f"tuner: {tuner[1]}")
    match = re.search(rf"/({_TUNERS})", reference(row))
    if match and "ms-swift" in source:
        raise NotModelled(f"tuner: {match[1]}")
    if "ZeRO3" in str(row.get("notes")) and "megatron/" in reference(row):
        raise NotModelled("the script is another variant than its header")
    if row.get("zero") in (2, 3) and row.get("gpus") == 1:
        raise NotModelled("not published: gpus")
    if "re-gather" in method:
        raise NotModelled("tuner: input gathered again")


def _megatron_plan(row: Mapping[str, Any]) -> Plan:
    method = row.get("method") or ""
    tensor, pipeline, context = needed(row, "tp"), needed(row, "pp"), row.get("cp") or 1
    data = row.get("dp") or max(1, needed(row, "gpus") // (tensor * pipeline * context))
    micro_batch = needed(row, "mbs")
    return Plan(
        tensor=tensor,
        pipeline=pipeline,
        virtual_pipeline=row.get("vpp") or 1,
        context=context,
        expert=row.get("ep") or 1,
        expert_tensor=row.get("etp") or 1,
        data=data,
        sequence_parallel=sequence_parallel(row["source"], tensor, str(row.get("recompute") or "none")),
        attention="fused" if habits_of(row).flash else "scores",
        sequence_length=_largest_tokens(row),
        micro_batch=micro_batch * sequences(method),
        micro_batches=max(1, (row.get("gbs") or micro_batch * data) // (micro_batch * data)),
        offload_fraction=_offloaded(method),
        context_a2a="SimuMax" in row["source"] and context > 1,
        **recompute(row),
    )


def _largest_tokens(row: Mapping[str, Any]) -> float:
    """Return the tokens of a mean sequence in the largest micro-batch.

    ms-swift's scripts name their data. Its documentation gives the mean length of most
    (docs/source_en/Instruction/Supported-models-and-datasets.md).
    """
    length, count = needed(row, "seq"), needed(row, "mbs")
    if "ms-swift" not in row["source"] or count == 1 or "packing=true" in row["method"]:
        return length
    if row.get("sample_tokens") is None:
        raise NotModelled("not published: how long the samples are")
    return float(worst_length(needed(row, "sample_tokens"), length, count, needed(row, "samples")))


def _offloaded(method: str) -> float:
    if "optimizer_cpu_offload=true" not in method:
        return 0.0
    match = re.search(r"optimizer_offload_fraction=([\d.]+)", method)
    return float(match[1]) if match else 1.0


def _fp8(row: Mapping[str, Any]) -> Fp8 | None:
    """Return how a Megatron run in FP8 keeps 8-bit copies; None if it is in 16 bits or not a run that we know.

    Megatron-Bridge 067f987: its current scaling stores weights in FP8 (training/mixed_precision.py
    bf16_with_fp8_current_scaling_mixed), and its recipe of Llama 3 70B caches no transposed copies
    (perf_recipes/llama/h100/llama3.py, disable_parameter_transpose_cache). It keeps the first and the last layer in 16
    bits, which is not counted. ms-swift's method names recipe and parameters.
    """
    precision, method = str(row.get("precision")).lower(), str(row.get("method"))
    if not precision.startswith("fp8"):
        return None
    if "Bridge" in row["source"] and "current scaling" in precision:
        return fp8_of_recipe("tensorwise", replaces_weights=True, one_copy=True)
    recipe = re.search(r"fp8_recipe=(\w+)", method)
    if "ms-swift" in row["source"] and recipe:
        replaces = "fp8_param_gather=true" in method
        return fp8_of_recipe(recipe[1], replaces_weights=replaces, one_copy=False)
    return None


def _megatron_memory(row: Mapping[str, Any]) -> MemoryTraits:
    memory, fp8 = stated_bytes(row, _memory_in_16_bits(row)), _fp8(row)
    if fp8 and "Bridge" in row["source"]:
        # The same recipe: grad_reduce_in_fp32 = False.
        memory = replace(memory, gradient_bytes=2)
    return replace(memory, fp8=fp8)


def _memory_in_16_bits(row: Mapping[str, Any]) -> MemoryTraits:
    source = row["source"]
    if "ms-swift" in source:
        memory = traits("swift-megatron")
        fused = memory.fused_logits_bytes or memory.logits_forward_bytes
        of_version_4 = _SWIFT_4.search(str(row.get("notes")))
        if of_version_4 or "cross_entropy_fusion_impl=te" in str(row.get("method")):
            fused = OLD_TE_LOSS_BYTES
        if of_version_4:
            memory = replace(memory, gradient_bytes=2)
        if "exp_avg_dtype=bf16" in str(row.get("method")):
            # Transformer Engine's FusedAdam with 16-bit moments. Beside a 16-bit weight it stores the other half of the
            # fp32 master (megatron-core 0.16.1 optimizer/optimizer_config.py store_param_remainders), beside an 8-bit
            # one the whole.
            memory = replace(memory, optimizer_bytes=8 if _fp8(row) else 6)
        return replace(memory, logits_forward_bytes=fused, logits_backward_bytes=fused)
    if "LLaMA-Factory" in source:
        return traits("llamafactory-megatron")
    if row["model"].startswith("Moonlight"):
        # Its recipe (recipes/moonlight/moonlight_16b.py): 16-bit gradients and moments, fp32 masters.
        return replace(FUSED_LOSS, gradient_bytes=2, optimizer_bytes=8)
    if "SimuMax" in source or "Bridge" in source:
        return FUSED_LOSS
    if "BigScience" in source and str(row.get("precision")) == "bf16":
        # DeepSpeed's runtime/bf16_optimizer.py: 16-bit gradients, and fp32 ones that accumulate them.
        return replace(MEGATRON_LM_MEMORY, gradient_bytes=6)
    if str(row.get("precision")) == "fp16":
        # Megatron-LM accumulates fp16 gradients in fp16: fp32 ones are for bf16 (megatron/training/arguments.py).
        return replace(MEGATRON_LM_MEMORY, gradient_bytes=2)
    return MEGATRON_LM_MEMORY


def _megatron_run(row: Mapping[str, Any]) -> Run:
    method = row.get("method") or ""
    adapted = "lora" in method.lower()
    return Run(
        trained=trained(method),
        adapters=Adapters(rank=rank(method), targets=targets(method)) if adapted else None,
        reference="rlhf_type=dpo" in method and not adapted,
    )
