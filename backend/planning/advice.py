"""The best plan of each training strategy for a job's model and cluster, each with one reason computed from figures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from backend.estimate import TERMS, over_gpu_gib
from backend.job.batch import planned_batch
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check_resolved
from backend.job.traits import TRAITS, EngineName, sibling
from backend.planning.enumerate import enumerate_plans
from backend.planning.plans import Candidate, needs_other_engine
from backend.planning.recommended import recommended

StrategyKey = Literal[
    "ddp", "zero2", "zero2-offload", "zero3", "zero3-offload", "fsdp", "megatron", "lora-ddp", "qlora"
]
_SETTINGS: Mapping[StrategyKey, tuple[str, str]] = {
    "ddp": ("ddp", "full"),
    "zero2": ("zero2", "full"),
    "zero2-offload": ("zero2-offload", "full"),
    "zero3": ("zero3", "full"),
    "zero3-offload": ("zero3-offload", "full"),
    "fsdp": ("fsdp", "full"),
    "megatron": ("megatron", "full"),
    "lora-ddp": ("ddp", "lora"),
    "qlora": ("ddp", "qlora"),
}
"""Strategy -> (the engine's name without its environment, training.method)."""
ADAPTERS = ("lora", "qlora")


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One row of the strategy table."""

    key: StrategyKey
    engine: EngineName
    method: str
    """training.method: full, lora or qlora."""
    global_batch: int
    """Global batch at which the strategies are compared; the same in every row. It is the job's own, or the next larger
    one that all strategies can use."""
    best: Candidate | None = None
    """The fastest plan that fits. If none fits, the first plan that does not. None if no plan is legal."""
    fits: bool = False
    recommended: bool = False
    """Whether this is the fastest strategy that fits and trains as the job asks (full weights or adapters). If no such
    strategy fits, the fastest of all that fit is recommended."""
    memory_gib: float | None = None
    """Memory of the GPU with the most in use: what the allocator reserves, plus memory outside PyTorch."""
    tokens_per_s_per_gpu: float | None = None
    hours: float | None = None
    reason: str = ""
    """fastest, slower, fits, adapters, too_large, host_too_large or refused: catalogue key `advice.<reason>`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the placeholders. fastest, slower: part (key `advice.part.<part>`), share, slower.
    too_large, fits: term (key `term.<term>`), term_gib, over_gib. adapters: trained, total (parameters)."""
    problem: Problem | None = None
    """The rule that refuses all plans, if there is one."""
    edits: Mapping[str, object] = field(default_factory=dict)
    """Job path -> value: the edits that select the strategy. Empty if it has no plan."""


def strategies(job: Job) -> tuple[Strategy, ...]:
    """Return a row for each strategy, in the order of StrategyKey.

    All strategies are compared at one global batch: the smallest that all can use, not below the job's own. Raises
    ProblemsError if the model or the GPU is not known.
    """
    own_batch = planned_batch(job)
    common = _common_batch(job, own_batch)
    rows = _rows(job, common)
    if common != own_batch and not any(row.best for row in rows if row.key != "megatron"):
        # The rules refuse the other strategies at any batch. Megatron then uses the job's own batch.
        rows_at_own = _rows(job, own_batch)
        rows = [
            at_own if at_own.key == "megatron" else replace(row, global_batch=own_batch)
            for at_own, row in zip(rows_at_own, rows, strict=True)
        ]
    chosen = _recommended(job, rows)
    return tuple(_explained(row, chosen) for row in rows)


def _common_batch(job: Job, own_batch: int) -> int:
    """Return the smallest global batch, not below the job's own, that data parallelism over all ranks can split.

    Megatron can use it too: its DP divides the number of ranks, and every PP divides the micro-batches of a replica.
    """
    return -(-own_batch // job.world_size) * job.world_size


def _rows(job: Job, batch: int) -> list[Strategy]:
    settings: dict[StrategyKey, tuple[EngineName, str]] = {
        key: (cast(EngineName, sibling(job.traits, name)), method) for key, (name, method) in _SETTINGS.items()
    }
    full_engines = tuple(name for name in TRAITS if name in {engine for engine, _ in settings.values()})
    return [_best_of(job, key, engine, method, full_engines, batch) for key, (engine, method) in settings.items()]


def _best_of(
    job: Job, key: StrategyKey, engine: EngineName, method: str, engines: tuple[EngineName, ...], batch: int
) -> Strategy:
    # If the job sets accumulation, the plan's own edits set the batch.
    batch_edit = {} if job.training.global_batch_size is None else {"training.global_batch_size": batch}
    changed = with_values(job, {"engine": engine, "training.method": method, **batch_edit})
    row = Strategy(key=key, engine=engine, method=method, global_batch=batch, reason="refused")
    try:
        # One call enumerates all full fine-tuning: the page has these plans already.
        # All strategies use one batch: with equal accumulation, more replicas would mean more work.
        plans = enumerate_plans(changed, engines if method == "full" else (engine,), batch)
    except ProblemsError as error:
        return replace(row, problem=error.problems[0])
    index = next((index for index, space in enumerate(plans.spaces) if space.job.engine == engine), None)
    rank = None if index is None else recommended(plans, index)
    if rank is None:
        return replace(row, problem=next(iter(errors(check_resolved(changed, plans.shape, plans.gpu))), None))
    best = plans[rank]
    figures = best.estimate
    return replace(
        row,
        best=best,
        fits=figures.fits,
        memory_gib=figures.reserved_gib + figures.outside_gib,
        tokens_per_s_per_gpu=figures.tokens_per_s_per_gpu,
        hours=figures.hours,
        edits={"training.method": method, **batch_edit, **best.edits},
    )


def _recommended(job: Job, rows: Iterable[Strategy]) -> Strategy | None:
    """Return the fastest strategy of the job's kind that fits by the upper bound of its need; else one that may fit."""
    fitting = [row for row in rows if row.fits]
    same_kind = [row for row in fitting if (row.method in ADAPTERS) == (job.training.method in ADAPTERS)]
    candidates = same_kind or fitting
    sure = [row for row in candidates if row.best is not None and row.best.estimate.fit == "fits"]
    return max(sure or candidates, key=_merit, default=None)


def _merit(row: Strategy) -> tuple[bool, float, float]:
    """Return the sort key of a row, as enumerate_plans sorts.

    It is whether no rule warns of the engine, then the speed, or else bubble and offload, then memory.
    """
    is_right = row.best is not None and not needs_other_engine(row.best.warnings)
    if row.tokens_per_s_per_gpu or row.best is None:
        return (is_right, row.tokens_per_s_per_gpu or 0.0, 0.0)
    slowness = row.best.estimate.bubble_fraction + (row.best.job.traits.offloads != "none")
    return (is_right, -slowness, -(row.memory_gib or 0.0))


def _explained(row: Strategy, chosen: Strategy | None) -> Strategy:
    """Return the row with its reason."""
    if row.best is None:
        return row
    figures = row.best.estimate
    peak_stage = figures.stages[figures.peak_stage]
    term = max(TERMS, key=lambda name: getattr(peak_stage, f"{name}_gib"))
    largest_term = {"term": term, "term_gib": getattr(peak_stage, f"{term}_gib")}
    if not row.fits:
        over_gib = over_gpu_gib(figures)
        if not over_gib:
            return replace(row, reason="host_too_large")
        return replace(row, reason="too_large", values={**largest_term, "over_gib": over_gib})
    if row is chosen:
        row, times = replace(row, recommended=True), figures.time_s
        if not times:
            return replace(row, reason="fits", values=largest_term)
        part = max(times, key=lambda name: times[name])
        return replace(row, reason="fastest", values={"part": part, "share": times[part] / sum(times.values())})
    if row.method in ADAPTERS:
        trained = sum(stage.trainable_parameters for stage in figures.stages)
        return replace(row, reason="adapters", values={"trained": trained, "total": peak_stage.parameters})
    ours, best = figures.time_s, chosen.best.estimate.time_s if chosen and chosen.best else None
    if not ours or not best or not row.tokens_per_s_per_gpu or not chosen or not chosen.tokens_per_s_per_gpu:
        return replace(row, reason="fits", values=largest_term)
    part = max(ours, key=lambda name: ours[name] - best.get(name, 0.0))
    slower = 1 - row.tokens_per_s_per_gpu / chosen.tokens_per_s_per_gpu
    return replace(row, reason="slower", values={"part": part, "slower": slower})
