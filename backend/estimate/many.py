"""The figures of many plans at once, by the formulas that estimate one: the sizes are arrays with one entry a plan.

What layers cost is computed for all plans together. What stages cost is computed for those together whose layers are
cut into stages alike: that alone changes how formulas are put together and not just the numbers in them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.estimate.calibrated import reserved_ratio, time_ratio
from backend.estimate.efficiency import Machine, machine_of
from backend.estimate.estimate import GIB, RESERVED_PER_ALLOCATED, bubble_of_work, memory_traits, modelled, run_of
from backend.estimate.layers import model_layers
from backend.estimate.megatron import PlanCosts, plan_costs
from backend.estimate.numeric import largest
from backend.estimate.plan import Plan, plan_of
from backend.estimate.stage import trained_parts
from backend.estimate.step_time import KindPasses
from backend.estimate.timing import COMMUNICATION, kinds_of, setting_of, step_of
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]
"""Path of the job -> every plan's value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """As in Estimate, an array each; those of time are None where the GPU's speed is not known."""

    reserved_gib: Array
    fits: Array
    bubble_fraction: Array
    iteration_s: Array | None
    parts_s: Array | None
    """What iteration_s is the sum of: one line for each of PARTS."""


PARTS = ("compute", "recompute", "bubble", "optimizer", "offload", *COMMUNICATION)
"""As in Estimate.time_s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Costs:
    """What does not depend on how layers are cut into stages."""

    plan: Plan
    memory: PlanCosts | None
    passes: KindPasses | None


def evaluate(
    job: Job, shape: ModelShape, gpu: Gpu, columns: Columns, choices: tuple[tuple[str, tuple[str, ...]], ...]
) -> Figures:
    """The figures of plans of one engine that no rule refuses; the job says what they have in common.

    `columns` holds the sizes by path, the micro-batches of a step under training.gradient_accumulation_steps, and under
    parallel.recompute the place of each plan's (recompute, modules) in `choices`. Raises what `estimate` raises.
    """
    machine = machine_of(job.cluster, gpu, job.training.precision)
    everything = _job_of(job, columns)
    costs = _costs(everything, shape, gpu, columns, choices, machine)
    size = len(columns["training.micro_batch_size"])
    found: dict[str, Array] = {}
    for rows, cut in _cuts(columns, size):
        part = _job_of(job, {path: values[rows] for path, values in columns.items()}, cut)
        for name, values in _together(part, shape, gpu, _take(costs, rows), cut, machine).items():
            found.setdefault(name, np.empty((*values.shape[:-1], size), values.dtype))[..., rows] = values
    return Figures(**{field.name: found.get(field.name) for field in fields(Figures)})  # type: ignore[arg-type]


STATIC = ("pipeline", "virtual_pipeline", "account_for_embedding", "account_for_loss")
"""How the layers are cut into stages: keys of `parallel`."""


def _cuts(columns: Columns, size: int) -> Iterator[tuple[Array, dict[str, Any]]]:
    """Rows that are cut alike, and how."""
    static = [(name, columns[path]) for name in STATIC if (path := f"parallel.{name}") in columns]
    key = np.zeros(size, np.int64)
    for _, values in static:
        key = key * (int(values.max()) + 1) + values
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        yield rows, {name: values[rows[0]].item() for name, values in static}


def _job_of(job: Job, columns: Columns, cut: Mapping[str, Any] | None = None) -> Job:
    """A job whose sizes are arrays; it means what a job with one entry of each means."""
    recompute = {"recompute": "none", "recompute_modules": (), "recompute_num_layers": None}
    parts: dict[str, dict[str, Any]] = {"parallel": {}, "training": {}}
    for path, values in columns.items():
        part, name = path.split(".")
        parts[part][name] = values
    parallel = replace(job.parallel, **{**parts["parallel"], **recompute, **(cut or {})})
    return replace(job, parallel=parallel, training=replace(job.training, global_batch_size=None, **parts["training"]))


def _costs(
    job: Job,
    shape: ModelShape,
    gpu: Gpu,
    columns: Columns,
    choices: tuple[tuple[str, tuple[str, ...]], ...],
    machine: Machine | None,
) -> _Costs:
    layers, trained, memory = model_layers(shape), trained_parts(job, shape), memory_traits(job, shape)
    plan = replace(
        plan_of(job, shape.vision, flash_attention=gpu.supports_bf16),
        recompute_choices=choices,
        recompute_choice=columns["parallel.recompute"],
        recompute_layers=columns["parallel.recompute_num_layers"],
    )
    megatron = job.traits.is_megatron
    return _Costs(
        plan=plan,
        memory=plan_costs(layers, plan, memory, run_of(job, trained)) if megatron else None,
        passes=kinds_of(job, setting_of(job, machine, plan, memory), layers, trained) if machine else None,
    )


def _together(
    job: Job, shape: ModelShape, gpu: Gpu, costs: _Costs, cut: Mapping[str, Any], machine: Machine | None
) -> dict[str, Array]:
    """Figures of plans whose layers are cut alike."""
    plan = replace(costs.plan, **cut)
    found = modelled(job, shape, gpu, plan, costs.memory)
    ratio = reserved_ratio(job) or RESERVED_PER_ALLOCATED
    reserved = ratio / GIB * largest(*(memory.peak for memory in found.memories))
    figures = {"reserved_gib": reserved, "fits": reserved + job.cluster.outside_gib <= gpu.memory_gib}
    if machine:
        setting = setting_of(job, machine, plan, found.traits)
        step = step_of(job, setting, found.layers, found.trained, found.memories, costs.passes)
        scale = time_ratio(job.cluster) or 1.0
        figures["bubble_fraction"] = step.bubble
        figures["iteration_s"] = scale * step.iteration_s
        figures["parts_s"] = scale * np.array([np.broadcast_to(step.parts[name], reserved.shape) for name in PARTS])
    else:
        figures["bubble_fraction"] = bubble_of_work(job, found)
    return {name: np.broadcast_to(values, (*np.shape(values)[:-1], len(reserved))) for name, values in figures.items()}


def _take(value: Any, rows: Array) -> Any:
    """Of every array in a tree of dataclasses and named tuples these entries alone."""
    if isinstance(value, np.ndarray):
        return value[rows]
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: _take(getattr(value, name), rows) for name in names})
    if hasattr(value, "_fields"):
        return type(value)(*(_take(item, rows) for item in value))
    return value
