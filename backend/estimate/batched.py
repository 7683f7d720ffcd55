"""The figures of many plans at once, by the formulas of one plan: the sizes are arrays with one entry for each plan.

The costs of layers are computed for all plans together. The costs of stages are computed together for plans whose
layers are cut into stages alike, because the cut alone changes the structure of the formulas. If the plans include
every choice of recompute, with and without the distributed optimizer, each of these choices has its own dimension.
Results that do not depend on a choice are computed once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from backend.estimate.array_ops import Array, Flag, Number
from backend.estimate.estimate import (
    GIB,
    bubble_of_work,
    estimate_memory,
    host_memory_gib,
    is_held,
    layers_of_job,
    reserved_of,
    run_of,
)
from backend.estimate.memo import Memo
from backend.estimate.memory.engine_memory import check_modelled, memory_traits
from backend.estimate.memory.megatron import PlanCosts, plan_costs
from backend.estimate.memory.non_torch_memory import non_torch_gib
from backend.estimate.memory.stage import trained_parts
from backend.estimate.plan import Plan, effective_choices, plan_of
from backend.estimate.time.calibrated import time_ratio
from backend.estimate.time.efficiency import Machine
from backend.estimate.time.step_time import MicroBatch
from backend.estimate.time.timing import COMMUNICATION, micro_batch_of, step_of, time_context_of, timed_machine
from backend.job.attention import attention_kind
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.rules.batched import Column, as_sizes

Indices = npt.NDArray[np.integer]
Rows = Indices | slice
Columns = Mapping[str, Column]
"""Job path -> the value of every plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Figures as in Estimate, each an array. Times are None if the GPU's speed is unknown.

    host_memory_gib is None if the RAM of a node is unknown; then nothing is compared with it.
    """

    reserved_gib: Array
    outside_gib: Array
    fits: npt.NDArray[np.bool_]
    bubble_fraction: Array
    iteration_s: Array | None
    host_memory_gib: Array | None = None

    @property
    def need_gib(self) -> Array:
        """Return the memory that a plan needs on a GPU, in total."""
        needed: Array = self.reserved_gib + self.outside_gib
        return needed


PARTS = ("compute", "recompute", "bubble", "optimizer", "offload", *COMMUNICATION)
"""As in Estimate.time_s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The plans of a cut on the first of the lines. The other lines differ only in the choices of `lines`.

    Cuts that differ in VPP, and in what counts as a layer, often share a base.
    """

    columns: Columns
    kind: Indices
    """The index in `alike` of each plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Plans whose layers are cut into stages alike; they are adjacent."""

    rows: slice
    stages: Mapping[str, Any]
    """The values of STATIC."""
    base: "Base"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanBatch:
    """Plans of one engine as arrays."""

    choices: tuple[tuple[str, tuple[str, ...]], ...]
    """Every (recompute, modules) that occurs."""
    cuts: tuple[Cut, ...]
    lines: Columns
    """Values of the choices that every plan of `base` has. Each choice has its own dimension before the last."""
    shape: tuple[int, ...]
    """The number of values of each choice."""
    index: Indices
    """The index of each plan among the results of its cut, lines of `base` one after the other."""
    alike: Columns
    """One plan of each kind whose layers cost the same, apart from `lines`: values of OF_LAYERS."""


OF_LAYERS = (
    *(f"parallel.{name}" for name in ("tensor", "context", "expert", "expert_tensor")),
    "training.micro_batch_size",
    "parallel.recompute",
    "parallel.recompute_num_layers",
    "parallel.sequence",
)
"""The parameters that the cost of a layer depends on, on any stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """Choices that all plans of a cut include alike: PlanBatch.lines and PlanBatch.shape."""

    values: Columns
    shape: tuple[int, ...]
    order: Indices
    """The plans of each cut, line after line; all lines have the same order."""


STATIC = ("pipeline", "virtual_pipeline", "account_for_embedding", "account_for_loss", "pipeline_layout")
"""The keys of `parallel` that cut the layers into stages."""
OF_STAGES = tuple(f"parallel.{name}" for name in STATIC)


def plan_batch(
    columns: Callable[[Rows], Columns],
    choices: tuple[tuple[str, tuple[str, ...]], ...],
    cut: Indices,
    alike: Indices,
    lines: Lines,
) -> PlanBatch:
    """Return plans as arrays. Plans have equal values in `cut` if they are equal in OF_STAGES, and in `alike` if they
    are equal in OF_LAYERS without `lines`.

    `columns` returns the sizes of some plans by path. Its training.gradient_accumulation_steps holds the micro-batches
    of a step. Its parallel.recompute holds the index of the plan's (recompute, modules) in `choices`. Plans with the
    same cut are adjacent. The values of `alike` start at 0 and skip few numbers.
    """
    begins = np.flatnonzero(np.diff(cut, prepend=-1))
    stages = {path: values.tolist() for path, values in columns(begins).items() if path in OF_STAGES}
    first = np.full(alike.max() + 1, -1)
    # The last write stays, which is the first plan of each kind.
    first[alike[::-1]] = np.arange(len(alike))[::-1]
    occurs = first >= 0
    kind, index = (np.cumsum(occurs) - 1)[alike], np.empty(len(cut), np.intp)
    cuts, bases = list[Cut](), dict[tuple[Any, ...], Base]()
    for number, (begin, end) in enumerate(pairwise([*begins.tolist(), len(cut)])):
        rows = lines.order[begin:end]
        index[rows] = np.arange(end - begin)
        own = rows[: (end - begin) // prod(lines.shape)]
        sizes = {path: values for path, values in columns(own).items() if path not in OF_STAGES}
        how = {path.removeprefix("parallel."): values[number] for path, values in stages.items()}
        key = (how.get("pipeline"), *(values.tobytes() for values in sizes.values()))
        base = bases.setdefault(key, Base(columns=sizes, kind=kind[own]))
        cuts.append(Cut(rows=slice(begin, end), stages=how, base=base))
    return PlanBatch(
        choices=choices,
        cuts=tuple(cuts),
        lines=lines.values,
        shape=lines.shape,
        index=index,
        alike={path: values for path, values in columns(first[occurs]).items() if path in OF_LAYERS},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Costs:
    """Costs that do not depend on the cut of the layers into stages."""

    memory: PlanCosts | None
    time: MicroBatch | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The parts of iteration_s, the values of PARTS, for each cut."""

    batch: PlanBatch
    of_cuts: tuple[tuple[Array, ...], ...]

    def at(self, rows: Indices) -> Array:
        """Return one row for each of PARTS, with one entry for each of these plans."""
        cuts, figures_by_name = self.batch.cuts, np.empty((len(PARTS), len(rows)))
        cut_of = np.searchsorted([cut.rows.start for cut in cuts], rows, side="right") - 1
        for number in np.unique(cut_of).tolist():
            chosen = np.flatnonzero(cut_of == number)
            shape = (*self.batch.shape, len(cuts[number].base.kind))
            position = np.unravel_index(self.batch.index[rows[chosen]], shape)
            for line, values in zip(figures_by_name, self.of_cuts[number], strict=True):
                line[chosen] = np.broadcast_to(values, shape)[position]
        return figures_by_name


def evaluate(job: Job, shape: ModelShape, gpu: Gpu, batch: PlanBatch) -> tuple[Figures, Parts | None]:
    """Return the figures of legal plans, and the parts of iteration_s.

    `job` holds what the plans have in common. Raises what `estimate` raises.
    """
    machine = timed_machine(job, gpu)
    costs = _costs(job, shape, gpu, batch, machine)
    size, figures_by_name, parts = len(batch.index), dict[str, Array](), []
    costs_and_memo: dict[int, tuple[_Costs, Memo]] = {}
    for cut in batch.cuts:
        base = cut.base
        if id(base) not in costs_and_memo:
            costs_and_memo[id(base)] = _take(costs, base.kind), Memo()
        columns = {**base.columns, **batch.lines}
        cut_job = _job_of(job, columns, cut.stages)
        plan = _plan_of(cut_job, shape, gpu, batch.choices, columns)
        figures, times = _evaluate_cut(cut_job, shape, gpu, plan, machine, *costs_and_memo[id(base)])
        parts.append(times)
        indices, lines = batch.index[cut.rows], (*batch.shape, len(base.kind))
        for name, values in figures.items():
            flat = np.broadcast_to(values, lines).reshape(-1)
            figures_by_name.setdefault(name, np.empty(size, flat.dtype))[cut.rows] = flat.take(indices)
    figures_of = Figures(**{field.name: figures_by_name.get(field.name) for field in fields(Figures)})  # type: ignore[arg-type]
    return figures_of, Parts(batch=batch, of_cuts=tuple(parts)) if machine else None


def _job_of(job: Job, columns: Columns, cut: Mapping[str, Any] | None = None) -> Job:
    """Return a job whose sizes are arrays. It means one job for each entry."""
    recompute = {"recompute": "none", "recompute_modules": (), "recompute_num_layers": None}
    parts: dict[str, dict[str, Any]] = {"parallel": {}, "training": {}}
    for path, values in columns.items():
        cut_job, name = path.split(".")
        parts[cut_job][name] = values
    parallel = replace(job.parallel, **{**parts["parallel"], **recompute, **(cut or {})})
    return replace(job, parallel=parallel, training=replace(job.training, global_batch_size=None, **parts["training"]))


def _costs(job: Job, shape: ModelShape, gpu: Gpu, batch: PlanBatch, machine: Machine | None) -> _Costs:
    check_modelled(job, shape)
    columns = {**batch.alike, **{path: values for path, values in batch.lines.items() if path in OF_LAYERS}}
    # The layout is not read either; the rules may have rejected it.
    job = _job_of(job, columns, {"pipeline_layout": None})
    layers, trained, memory = (
        layers_of_job(job, shape),
        trained_parts(job, shape),
        memory_traits(job, shape, gpu),
    )
    # Fields that the cost of a layer must not depend on are no numbers, so that a formula that reads them fails.
    unknown: dict[str, Any] = dict.fromkeys(("data", "micro_batches", "distributed_optimizer", *STATIC))
    plan = replace(_plan_of(job, shape, gpu, batch.choices, columns), **unknown)
    megatron = job.traits.is_megatron
    return _Costs(
        memory=plan_costs(layers, plan, memory, run_of(job, trained)) if megatron else None,
        time=micro_batch_of(job, time_context_of(job, shape, machine, plan, memory, layers), layers, trained)
        if machine
        else None,
    )


def _plan_of(
    job: Job, shape: ModelShape, gpu: Gpu, choices: tuple[tuple[str, tuple[str, ...]], ...], columns: Columns
) -> Plan:
    return replace(
        plan_of(job, shape.vision, attention=attention_kind(job, shape, gpu)),
        recompute_choices=effective_choices(job, shape.model_type, choices),
        recompute_choice=as_sizes(columns["parallel.recompute"]),
        # A Number that is an array may hold integers.
        recompute_layers=cast(Array, columns["parallel.recompute_num_layers"]),
    )


def _evaluate_cut(
    job: Job, shape: ModelShape, gpu: Gpu, plan: Plan, machine: Machine | None, costs: _Costs, memo: Memo
) -> tuple[dict[str, Number | Flag], tuple[Array, ...]]:
    """Return the figures of plans whose layers are cut alike, and the values of PARTS if the GPU's speed is known."""
    memory = estimate_memory(job, shape, gpu, plan, costs.memory, memo)
    reserved = reserved_of(job, shape, memory) / GIB
    host = 0.0 if job.cluster.host_memory_gib is None else host_memory_gib(job, memory.stages)
    outside = non_torch_gib(job, plan)
    fits = is_held(job, gpu, reserved + outside, host)
    figures: dict[str, Number | Flag] = {"reserved_gib": reserved, "outside_gib": outside, "fits": fits}
    parts: tuple[Array, ...] = ()
    if job.cluster.host_memory_gib is not None:
        figures["host_memory_gib"] = host
    if machine:
        time_context = time_context_of(job, shape, machine, plan, memory.traits, memory.layers)
        step = step_of(job, time_context, memory.layers, memory.trained, memory.stages, costs.time, memo)
        scale = time_ratio(job.cluster, machine) or 1.0
        figures["bubble_fraction"] = step.bubble
        figures["iteration_s"] = scale * step.iteration_s
        parts = tuple(scale * np.asarray(step.parts[name]) for name in PARTS)
    else:
        figures["bubble_fraction"] = bubble_of_work(job, memory)
    return figures, parts


def _take(value: Any, rows: Indices) -> Any:
    """Return a tree of dataclasses and named tuples with some entries of the last dimension of every array."""
    if isinstance(value, np.ndarray):
        # Arrays that differ by line only have one entry for all plans.
        return value if value.shape[-1] == 1 else value.take(rows, axis=-1)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: _take(getattr(value, name), rows) for name in names})
    if hasattr(value, "_fields"):
        return type(value)(*(_take(item, rows) for item in value))
    if isinstance(value, tuple):
        return tuple([_take(item, rows) for item in value])
    return value
