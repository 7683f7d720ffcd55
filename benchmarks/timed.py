"""Published rows of time, throughput or TFLOP/s, converted to the types of the time model without the job file.

habits.py has the properties of whole sources. Only a row's arguments decide whether it is not modelled.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from backend.estimate.memory.stage import Trained, rank_parameters, stages
from backend.estimate.model.layers import ModelLayers, counted_kinds, has_experts
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.work import flops_per_token
from backend.estimate.plan import Plan, unsplit
from backend.estimate.time.data_parallel import bucket_of
from backend.estimate.time.efficiency import default_efficiency
from backend.estimate.time.time_context import Execution, TimeContext
from backend.job.liger import NONE, Kernels
from backend.job.memory_traits import MEGATRON_LM_MEMORY, MemoryTraits
from backend.job.model.operators import Linear
from backend.job.problems import ProblemsError
from backend.job.traits import TRAITS
from benchmarks.errors import Skip
from benchmarks.habits import ANYONE, OLD_TE_LOSS_MOVED, Habits, habits_of
from benchmarks.machines import machine_name, published_gpu, published_machine
from benchmarks.micro_batch import fastest_that_fits
from benchmarks.named_shapes import named_shape
from benchmarks.own_runs import is_own, own_timed
from benchmarks.recipes import Recipe, recipe_of
from benchmarks.shapes import NotModelled
from benchmarks.timed_engine import engine_run, keeps_gathered, of_precision, row_adapters, sharding_of
from benchmarks.timed_plan import check_ranks, number, size, timed_plan
from benchmarks.timed_run import Timed

FIGURES = ("measured_iter_s", "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu", "mfu")


def timed_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Timed], list[Skip]]:
    """Return the run of every row with a time, and the skipped rows. A case that repeats counts once."""
    runs: list[Timed] = []
    skips: list[Skip] = []
    keys = set()
    for row in rows:
        if not any(number(row.get(figure)) for figure in FIGURES):
            continue
        source, case = _source(row), _case(row)
        try:
            timed: Timed
            timed = own_timed(row) if is_own(row) else fastest_that_fits(row, partial(_timed, source=source, case=case))
            key = (row.get("source"), case)
            if key in keys:
                raise NotModelled("the same case again")
            keys.add(key)
            runs.append(timed)
        except (NotModelled, ProblemsError) as problem:
            skips.append(Skip(source=source, case=case, reason=str(problem)))
        except (TypeError, ValueError, KeyError, ZeroDivisionError, ArithmeticError, AttributeError) as problem:
            skips.append(Skip(source=source, case=case, reason=f"not readable: {type(problem).__name__}: {problem}"))
    return runs, skips


def _source(row: Mapping[str, Any]) -> str:
    source = str(row.get("source") or "unknown")
    return "Megatron-Bridge" if source.startswith("Megatron-Bridge") else source


def _case(row: Mapping[str, Any]) -> str:
    names = ("gpus", "tp", "pp", "vpp", "dp", "cp", "ep", "mbs", "gbs", "seq")
    sizes = " ".join(f"{name}{row[name]}" for name in names if row.get(name))
    parts = (row.get("model"), row.get("hardware"), sizes, row.get("recompute"), row.get("precision"), row.get("notes"))
    return " | ".join(str(part) for part in parts if part)


def _timed(row: Mapping[str, Any], source: str, case: str) -> Timed:
    habits = habits_of(row)
    _refuse(row)
    precision = str(row.get("precision") or "bf16").lower()
    fp8 = "fp8" in precision or "float8" in precision
    if "fp4" in precision:
        raise NotModelled("4-bit matrix products")
    shape = named_shape(row, habits)
    layers = model_layers(shape)
    plan = timed_plan(row, habits, layers.count)
    if _predicts_further(row):
        layers, plan = _predicting_further(layers, plan)
    recipe = recipe_of(row)
    if recipe.recompute_modules:
        plan = replace(plan, recompute="selective", recompute_modules=recipe.recompute_modules)
    if not published_gpu(str(row.get("hardware"))).supports_bf16:
        plan = replace(plan, attention="scores")
    check_ranks(plan, size(row, "gpus"))
    method = str(row.get("method") or "").lower()
    adapters = "lora" in method or "peft" in method
    run = engine_run(row, layers) if row.get("engine") else _execution(row, habits, recipe, plan, layers)
    machine = published_machine(str(row.get("hardware") or ""), source, fp8=fp8, notes=str(row.get("notes")))
    flops = float(flops_per_token(layers, unsplit(plan), Trained(), adapters))
    tokens = size(row, "gbs", plan.micro_batch * plan.micro_batches * plan.data) * plan.sequence_length
    per_gpu = tokens / size(row, "gpus")
    counted = _counted(layers, plan, habits) if not adapters else flops
    parameters = tuple(rank_parameters(layers, plan, stage, Trained(), 1) for stage in stages(layers, plan))
    if adapters:
        parameters = tuple(replace(rank, trained_dense=0, trained_expert=0) for rank in parameters)
    return Timed(
        source=source,
        case=case,
        family="fp8" if fp8 else "moe" if any(map(has_experts, layers.kinds)) else "dense",
        precision="fp8" if fp8 else "bf16",
        group=_group(row, source),
        baseline_group=f"{source} | {machine_name(str(row.get('hardware')))} | {precision}",
        measured_s=_seconds(row, per_gpu, counted, machine.peak),
        tokens=per_gpu,
        flops=flops,
        layers=layers,
        time_context=TimeContext(plan=plan, machine=machine, efficiency=default_efficiency(), run=run),
        trained=Trained(),
        parameters=parameters,
        adapters=adapters,
        layer_alone=source.startswith("Korthikanti et al. 2022 Table 4"),
        flops_error=None if adapters else _flops_error(row, counted),
    )


def _predicts_further(row: Mapping[str, Any]) -> bool:
    """Return whether the run has multi-token prediction: Megatron-Bridge trains DeepSeek-V3 with it by default."""
    name = str(row.get("model")).lower().replace("-", "")
    return _source(row) == "Megatron-Bridge" and name.startswith("deepseekv3") and "w/o mtp" not in name


def _predicting_further(layers: ModelLayers, plan: Plan) -> tuple[ModelLayers, Plan]:
    """Return the layers and the plan with multi-token prediction.

    It adds a layer, a projection of two hidden states to one, and an output, all in the last piece:
    https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/transformer/multi_token_prediction.py
    """
    hidden, output = layers.output.hidden, layers.output
    joined = Linear(name="eh_proj", inputs=2 * hidden, outputs=hidden, share="split")
    output = replace(output, operators=(*output.operators, joined, *output.operators))
    *pieces, last_piece = plan.pipeline_layout or (layers.count,)
    layout = (*pieces, last_piece + 1) if plan.pipeline_layout else None
    longer = replace(layers, order=(*layers.order, layers.order[-1]), output=output)
    return longer, replace(plan, pipeline_layout=layout)


def _flops_error(row: Mapping[str, Any], counted: float) -> float | None:
    rate = number(row.get("measured_tokens_per_s_per_gpu"))
    speed = number(row.get("measured_tflops_per_gpu"))
    return abs(counted * rate / (1e12 * speed) - 1) if rate and speed else None


def _refuse(row: Mapping[str, Any]) -> None:
    source = str(row.get("source"))
    if "CI golden" in source:
        raise NotModelled("not published: gpus")
    if "LLaMA paper" in source:
        raise NotModelled("not published: parallel sizes")
    if "script header" in source and "packing=true" not in str(row.get("method")):
        raise NotModelled("not published: length of the samples")
    if "Megatron-SWIFT benchmark" in source:
        raise NotModelled("not published: batch")
    if "offload" in str(row.get("method")) and not row.get("lora"):
        raise NotModelled("host memory of the node not published")
    if "activations offloaded" in str(row.get("notes")):
        raise NotModelled("activations in host memory")
    if "rlhf" in str(row.get("method")):
        raise NotModelled("not one model's forward and backward")
    if "hybrid" in str(row.get("model")).lower() or "nemotron" in str(row.get("model")).lower():
        raise NotModelled("layers that are not attention")


def _execution(row: Mapping[str, Any], habits: Habits, recipe: Recipe, plan: Plan, layers: ModelLayers) -> Execution:
    notes = f"{row.get('notes') or ''} {row.get('method') or ''}"
    logits = 2 if habits.fused_loss else MEGATRON_LM_MEMORY.logits_forward_bytes
    memory = replace(
        MEGATRON_LM_MEMORY,
        gradient_bytes=habits.gradient_bytes,
        logits_forward_bytes=logits,
        logits_backward_bytes=logits,
    )
    sharded = habits.fsdp or (row.get("zero") == 3)
    if sharded:
        memory = replace(_traits("llamafactory-fsdp"), gradient_bytes=habits.gradient_bytes)
    memory = of_precision(memory, row)
    if habits.fused_loss:
        memory = replace(memory, loss_forward_moved=OLD_TE_LOSS_MOVED[0], loss_backward_moved=OLD_TE_LOSS_MOVED[1])
    return Execution(
        fused=not habits.fsdp or "compile" in notes,
        # NeMo AutoModel compiles Transformer Engine's modules, which keep their attention.
        compiled="compile" in notes and (habits.fsdp or habits is ANYONE),
        memory=memory,
        sums_apart=habits.sums_apart,
        attention_pace=habits.attention_pace,
        stops_early=habits.stops_early,
        keeps_products="AC (op)" in str(row.get("recompute")),
        # The default of torchtitan's selective_ac_option is "2" (config_manager.py in 2024-04).
        recomputed_layers=0.5 if "AC (layer)" in str(row.get("recompute")) else 1.0,
        sharding=sharding_of(row, fsdp=habits.fsdp or (habits.fsdp_2 and sharded)),
        keeps_gathered=keeps_gathered(row),
        bucket=bucket_of(memory, layers) if sharded else 0.0,
        megatron=not sharded,
        overlap_gradients=habits.overlap or "overlap-grad" in notes,
        overlap_parameters=habits.overlap or "overlap-param" in notes,
        overlap_tensor=(habits.overlap_tensor and plan.tensor > 1) or "async TP" in notes,
        overlap_sends=plan.virtual_pipeline > 1,
        scattered_sends=habits.scattered_sends,
        overlap_expert=recipe.overlap_expert or "1f1b overlap" in notes,
        merged_exchange=recipe.dispatcher != "alltoall" or "DeepEP" in notes or "HybridEP" in notes,
        routing="in_exchange" if recipe.dispatcher == "hybridep" else "fused" if recipe.fused_router else "plain",
        rope_fused=recipe.rope_fused,
        liger=_norms(row),
        graphed=recipe.graphed,
        adapters=row_adapters(row),
        # DeepSpeed keeps biases and norms whole: a layer gathers its four matrices.
        gathered_alone=4 * _dense_layers(layers) if habits.gathered_alone and sharded else 0,
    )


def _norms(row: Mapping[str, Any]) -> Kernels:
    """Return the norms of eager torchtitan that are one kernel, as Liger's are: torch's RMSNorm, which its models call,
    since pytorch pull request 153666 (in nightlies of 2025-08, which torchtitan runs on, and torch 2.9)."""
    is_one = "torchtitan" in row["source"] and re.search(r"\b(2025-(09|1[0-2])|202[6-9])\b", str(row.get("notes")))
    return NONE._replace(norms=True, head_norms=True) if is_one else NONE


def _traits(engine: str) -> MemoryTraits:
    memory = TRAITS[engine].memory
    if memory is None:
        raise NotModelled(f"engine: {engine}")
    return memory


def _dense_layers(layers: ModelLayers) -> int:
    """Return the number of layers without experts."""
    return sum(count for kind, count in counted_kinds(layers) if not has_experts(kind))


def _counted(layers: ModelLayers, plan: Plan, habits: Habits) -> float:
    """Return the FLOPs per token as the source counts them."""
    unsplit_plan = unsplit(plan)
    flops = float(flops_per_token(layers, unsplit_plan, Trained()))
    outside_attention = float(flops_per_token(layers, replace(unsplit_plan, sequence_length=1), Trained()))
    attention = flops - outside_attention
    if habits.whole_attention:
        flops += attention
    if habits.recompute_counted and plan.recompute == "full":
        head = 6.0 * layers.embedding
        flops = head + (flops - head) * 4 / 3
    return flops


def _seconds(row: Mapping[str, Any], tokens: float, counted: float, peak: float) -> float:
    iteration = number(row.get("measured_iter_s"))
    if iteration:
        return iteration
    rate = number(row.get("measured_tokens_per_s_per_gpu"))
    if rate:
        return tokens / rate
    speed = (number(row.get("measured_tflops_per_gpu")) or 0.0) * 1e12 or (number(row.get("mfu")) or 0.0) * peak
    return tokens * counted / speed


def _group(row: Mapping[str, Any], source: str) -> str:
    keys = ("model", "hardware", "gpus", "seq", "gbs", "precision")
    return " | ".join((source, *(str(row.get(key)) for key in keys)))
