"""The figures of many plans at once, by the formulas that estimate one: the sizes are arrays with one entry a plan.

What layers cost is computed for all plans together. What stages cost is computed for those together whose layers are
cut into stages alike: that alone changes how formulas are put together and not just the numbers in them. Where plans
come with and without the distributed optimizer, what it changes has two lines, and all else is computed once for both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.estimate.calibrated import reserved_ratio, time_ratio
from backend.estimate.efficiency import Machine, machine_of
from backend.estimate.estimate import (
    GIB,
    RESERVED_PER_ALLOCATED,
    bubble_of_work,
    host_memory_gib,
    is_held,
    memory_traits,
    modelled,
    run_of,
)
from backend.estimate.layers import model_layers
from backend.estimate.megatron import PlanCosts, plan_costs
from backend.estimate.numeric import largest
from backend.estimate.plan import Plan, plan_of
from backend.estimate.stage import trained_parts
from backend.estimate.step_time import MicroBatch
from backend.estimate.timing import COMMUNICATION, micro_batch_of, setting_of, step_of
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu

Array = npt.NDArray[Any]
Rows = Array | slice
Columns = Mapping[str, Array]
"""Path of the job -> every plan's value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """As in Estimate, an array each; those of time are None where the GPU's speed is not known.

    host_memory_gib is None where the RAM of a node is not known: then nothing is compared with it.
    """

    reserved_gib: Array
    fits: Array
    bubble_fraction: Array
    iteration_s: Array | None
    host_memory_gib: Array | None = None


PARTS = ("compute", "recompute", "bubble", "optimizer", "offload", *COMMUNICATION)
"""As in Estimate.time_s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Many:
    """Plans of one engine, none of which changes with what no rule reads."""

    columns: Callable[[Rows], Columns]
    """The sizes of some plans by path, the micro-batches of a step under training.gradient_accumulation_steps, and
    under parallel.recompute the place of each plan's (recompute, modules) in `choices`."""
    choices: tuple[tuple[str, tuple[str, ...]], ...]
    """Every (recompute, modules) that occurs."""
    cuts: tuple[tuple[slice, Mapping[str, Any]], ...]
    """Plans whose layers are cut into stages alike, which stand beside each other, and how."""
    alike: Columns
    """One of each kind of plan in which a layer costs the same: values of OF_LAYERS."""
    kind: Array
    """Of each plan: its place in `alike`."""
    in_pairs: bool
    """Each plan stands beside the one that differs in PAIRED alone."""


OF_LAYERS = (
    *(f"parallel.{name}" for name in ("tensor", "context", "expert", "expert_tensor")),
    "training.micro_batch_size",
    "parallel.recompute",
    "parallel.recompute_num_layers",
    "parallel.sequence",
)
"""What the cost of a layer depends on, whichever stage it is on."""

STATIC = ("pipeline", "virtual_pipeline", "account_for_embedding", "account_for_loss")
"""How the layers are cut into stages: keys of `parallel`."""
OF_STAGES = tuple(f"parallel.{name}" for name in STATIC)
PAIRED = "parallel.distributed_optimizer"


def many_of(
    columns: Callable[[Rows], Columns],
    choices: tuple[tuple[str, tuple[str, ...]], ...],
    cut: Array,
    alike: Array,
    *,
    in_pairs: bool,
) -> Many:
    """Plans as numbers: equal in `cut` where OF_STAGES are, in `alike` where OF_LAYERS are; those cut alike together.

    What is in `alike` begins at 0 and leaves few numbers out.
    """
    begins = np.flatnonzero(np.diff(cut, prepend=-1))
    stages = {path: values.tolist() for path, values in columns(begins).items() if path in OF_STAGES}
    first = np.full(alike.max() + 1, -1)
    # What is written last stays: the first plan of each kind.
    first[alike[::-1]] = np.arange(len(alike))[::-1]
    occurs = first >= 0
    return Many(
        columns=columns,
        choices=choices,
        cuts=tuple(
            (slice(begin, end), {path.removeprefix("parallel."): values[number] for path, values in stages.items()})
            for number, (begin, end) in enumerate(pairwise([*begins.tolist(), len(cut)]))
        ),
        alike={path: values for path, values in columns(first[occurs]).items() if path in OF_LAYERS},
        kind=(np.cumsum(occurs) - 1)[alike],
        in_pairs=in_pairs,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Costs:
    """What does not depend on how layers are cut into stages."""

    memory: PlanCosts | None
    time: MicroBatch | None


def evaluate(job: Job, shape: ModelShape, gpu: Gpu, many: Many) -> tuple[Figures, Array | None]:
    """The figures of plans that no rule refuses, and what iteration_s is the sum of, a line for each of PARTS.

    The job says what they have in common. Raises what `estimate` raises.
    """
    machine = machine_of(job.cluster, gpu, job.training.precision)
    costs = _costs(job, shape, gpu, many, machine)
    size = len(many.kind)
    found: dict[str, Array] = {}
    for rows, cut in many.cuts:
        first = slice(rows.start, rows.stop, 2) if many.in_pairs else rows
        columns = dict(many.columns(first))
        if many.in_pairs:
            columns[PAIRED] = many.columns(slice(rows.start, rows.start + 2))[PAIRED][:, np.newaxis]
        part = _job_of(job, columns, cut)
        plan = _plan_of(part, shape, gpu, many.choices, columns)
        for name, lines in _together(part, shape, gpu, plan, _take(costs, many.kind[first]), machine).items():
            values = lines.swapaxes(-1, -2).reshape(*lines.shape[:-2], -1) if many.in_pairs else lines
            found.setdefault(name, np.empty((*values.shape[:-1], size), values.dtype))[..., rows] = values
    parts_s = found.pop("parts_s", None)
    return Figures(**{field.name: found.get(field.name) for field in fields(Figures)}), parts_s  # type: ignore[arg-type]


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
        time=micro_batch_of(job, setting_of(job, machine, plan, memory), layers, trained) if machine else None,
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
    """Figures of plans whose layers are cut alike; of plans in pairs two lines."""
    found = modelled(job, shape, gpu, plan, costs.memory)
    ratio = reserved_ratio(job) or RESERVED_PER_ALLOCATED
    reserved = ratio / GIB * largest(*(memory.peak for memory in found.memories))
    host = 0.0 if job.cluster.host_memory_gib is None else host_memory_gib(job, found.memories)
    figures = {"reserved_gib": reserved, "fits": is_held(job, gpu, reserved, host)}
    if job.cluster.host_memory_gib is not None:
        figures["host_memory_gib"] = np.broadcast_to(host, reserved.shape)
    if machine:
        setting = setting_of(job, machine, plan, found.traits)
        step = step_of(job, setting, found.layers, found.trained, found.memories, costs.time)
        scale = time_ratio(job.cluster) or 1.0
        figures["bubble_fraction"] = step.bubble
        figures["iteration_s"] = scale * step.iteration_s
        figures["parts_s"] = scale * np.array([np.broadcast_to(step.parts[name], reserved.shape) for name in PARTS])
    else:
        figures["bubble_fraction"] = bubble_of_work(job, found)
    figures["bubble_fraction"] = np.broadcast_to(figures["bubble_fraction"], reserved.shape)
    return figures


def _take(value: Any, rows: Array) -> Any:
    """Of every array in a tree of dataclasses and named tuples these entries alone."""
    if isinstance(value, np.ndarray):
        return value.take(rows)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: _take(getattr(value, name), rows) for name in names})
    if hasattr(value, "_fields"):
        return type(value)(*(_take(item, rows) for item in value))
    return value
