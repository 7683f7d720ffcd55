"""The figures of many plans at once, by the formulas that estimate one: the sizes are arrays with one entry a plan.

What layers cost is computed for all plans together. What stages cost is computed for those together whose layers are
cut into stages alike: that alone changes how formulas are put together and not just the numbers in them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
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
class Many:
    """Plans of one engine as arrays, none of which changes with what no rule reads."""

    columns: Columns
    choices: tuple[tuple[str, tuple[str, ...]], ...]
    """Every (recompute, modules) that occurs."""
    cuts: tuple[tuple[slice, Mapping[str, Any]], ...]
    """Plans whose layers are cut into stages alike, which stand beside each other, and how."""
    alike: Columns
    """One of each kind of plan in which a layer costs the same: values of OF_LAYERS."""
    kind: Array
    """Of each plan: its place in `alike`."""


OF_LAYERS = (
    *(f"parallel.{name}" for name in ("tensor", "context", "expert", "expert_tensor", "sequence")),
    "parallel.recompute",
    "parallel.recompute_num_layers",
    "training.micro_batch_size",
)
"""What the cost of a layer depends on, whichever stage it is on."""


def in_order(columns: Columns, alike: Array) -> Array:
    """The order in which plans that are cut alike stand beside each other, and among them those of one `alike`."""
    return np.lexsort((alike, _cut_keys(columns)))


def many_of(columns: Columns, choices: tuple[tuple[str, tuple[str, ...]], ...], alike: Array) -> Many:
    """Plans that stand `in_order`.

    `columns` holds the sizes by path, the micro-batches of a step under training.gradient_accumulation_steps, and under
    parallel.recompute the place of each plan's (recompute, modules) in `choices`. `alike` is a number for each plan,
    equal where OF_LAYERS are.
    """
    _, first, kind = np.unique(alike, return_index=True, return_inverse=True)
    edges = [*np.flatnonzero(np.diff(_cut_keys(columns), prepend=-1)).tolist(), len(alike)]
    static = [(name, columns[path]) for name in STATIC if (path := f"parallel.{name}") in columns]
    return Many(
        columns=columns,
        choices=choices,
        cuts=tuple(
            (slice(begin, end), {name: values[begin].item() for name, values in static})
            for begin, end in pairwise(edges)
        ),
        alike={path: columns[path][first] for path in OF_LAYERS if path in columns},
        kind=kind.ravel(),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Costs:
    """What does not depend on how layers are cut into stages."""

    memory: PlanCosts | None
    passes: KindPasses | None


def evaluate(job: Job, shape: ModelShape, gpu: Gpu, many: Many) -> Figures:
    """The figures of plans that no rule refuses; the job says what they have in common.

    Raises what `estimate` raises.
    """
    machine = machine_of(job.cluster, gpu, job.training.precision)
    costs = _costs(job, shape, gpu, many, machine)
    size = len(many.kind)
    found: dict[str, Array] = {}
    for rows, cut in many.cuts:
        columns = {path: values[rows] for path, values in many.columns.items()}
        part = _job_of(job, columns, cut)
        plan = _plan_of(part, shape, gpu, many.choices, columns)
        for name, values in _together(part, shape, gpu, plan, _take(costs, many.kind[rows]), machine).items():
            found.setdefault(name, np.empty((*values.shape[:-1], size), values.dtype))[..., rows] = values
    return Figures(**{field.name: found.get(field.name) for field in fields(Figures)})  # type: ignore[arg-type]


STATIC = ("pipeline", "virtual_pipeline", "account_for_embedding", "account_for_loss")
"""How the layers are cut into stages: keys of `parallel`."""


def _cut_keys(columns: Columns) -> Array:
    """A number for each plan, equal where layers are cut alike."""
    key = np.zeros(len(columns["training.micro_batch_size"]), np.int64)
    for values in (columns[path] for name in STATIC if (path := f"parallel.{name}") in columns):
        key = key * (int(values.max(initial=0)) + 1) + values
    return key


def _job_of(job: Job, columns: Columns, cut: Mapping[str, Any] | None = None) -> Job:
    """A job whose sizes are arrays; it means what a job with one entry of each means."""
    recompute = {"recompute": "none", "recompute_modules": (), "recompute_num_layers": None}
    parts: dict[str, dict[str, Any]] = {"parallel": {}, "training": {}}
    for path, values in columns.items():
        part, name = path.split(".")
        parts[part][name] = values
    parallel = replace(job.parallel, **{**parts["parallel"], **recompute, **(cut or {})})
    return replace(job, parallel=parallel, training=replace(job.training, global_batch_size=None, **parts["training"]))


def _costs(job: Job, shape: ModelShape, gpu: Gpu, many: Many, machine: Machine | None) -> _Costs:
    job = _job_of(job, many.alike)
    layers, trained, memory = model_layers(shape), trained_parts(job, shape), memory_traits(job, shape)
    # What a layer's cost does not depend on is not a number: a formula that asks for it fails.
    unknown: dict[str, Any] = dict.fromkeys(("data", "micro_batches", "distributed_optimizer", *STATIC))
    plan = replace(_plan_of(job, shape, gpu, many.choices, many.alike), **unknown)
    megatron = job.traits.is_megatron
    return _Costs(
        memory=plan_costs(layers, plan, memory, run_of(job, trained)) if megatron else None,
        passes=kinds_of(job, setting_of(job, machine, plan, memory), layers, trained) if machine else None,
    )


def _plan_of(
    job: Job, shape: ModelShape, gpu: Gpu, choices: tuple[tuple[str, tuple[str, ...]], ...], columns: Columns
) -> Plan:
    return replace(
        plan_of(job, shape.vision, flash_attention=gpu.supports_bf16),
        recompute_choices=choices,
        recompute_choice=columns["parallel.recompute"],
        recompute_layers=columns["parallel.recompute_num_layers"],
    )


def _together(
    job: Job, shape: ModelShape, gpu: Gpu, plan: Plan, costs: _Costs, machine: Machine | None
) -> dict[str, Array]:
    """Figures of plans whose layers are cut alike."""
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
