"""The best plan of each training strategy for a job's model and cluster, each with one reason computed from figures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from backend.estimate import over_gpu_gib
from backend.job.batch import planned_batch
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check_resolved
from backend.job.traits import TRAITS, EngineName
from backend.planning.enumerate import enumerate_plans
from backend.planning.plans import Candidate
from backend.planning.recommended import recommended

StrategyKey = Literal[
    "ddp", "zero2", "zero2-offload", "zero3", "zero3-offload", "fsdp", "megatron", "lora-ddp", "qlora"
]
_WAYS: Mapping[StrategyKey, tuple[EngineName, str]] = {
    "ddp": ("llamafactory-ddp", "full"),
    "zero2": ("llamafactory-zero2", "full"),
    "zero2-offload": ("llamafactory-zero2-offload", "full"),
    "zero3": ("llamafactory-zero3", "full"),
    "zero3-offload": ("llamafactory-zero3-offload", "full"),
    "fsdp": ("llamafactory-fsdp", "full"),
    "megatron": ("llamafactory-megatron", "full"),
    "lora-ddp": ("llamafactory-ddp", "lora"),
    "qlora": ("llamafactory-ddp", "qlora"),
}
ADAPTERS = ("lora", "qlora")
TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One row of the strategy table."""

    key: StrategyKey
    engine: EngineName
    method: str
    """training.method: full, lora or qlora."""
    global_batch: int
    """What the strategies are compared at: the job's own, or the next that all can do; the same in every row."""
    best: Candidate | None = None
    """Its fastest plan that fits, or the first of those that do not; None where none is legal."""
    fits: bool = False
    recommended: bool = False
    """The fastest of those that fit and train as the job asks; with adapters where nothing else fits."""
    memory_gib: float | None = None
    """On the fullest GPU in all: the allocator's reserve and what lies outside it."""
    tokens_per_s_per_gpu: float | None = None
    hours: float | None = None
    reason: str = ""
    """fastest, slower, fits, adapters, too_large, host_too_large or refused: words under `advice.<reason>`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the words' placeholders stand for. fastest, slower: part (words `advice.part.<part>`), share, slower.
    too_large, fits: term (words `term.<term>`), term_gib, over_gib. adapters: trained, total (parameters)."""
    problem: Problem | None = None
    """Why none is legal, where a rule says it."""
    edits: Mapping[str, object] = field(default_factory=dict)
    """Job path -> value: what choosing it writes; empty where there is no plan."""


def strategies(job: Job) -> tuple[Strategy, ...]:
    """A row for each strategy, in the order of StrategyKey; raises ProblemsError where model or GPU is not known.

    All are compared at one global batch: the smallest that all can use, not below the job's own.
    """
    own = planned_batch(job)
    common = _common_batch(job, own)
    rows = _rows(job, common)
    if common != own and not any(row.best for row in rows if row.key != "megatron"):
        # The others are refused at any batch, so there is nothing to compare; their reasons stay.
        alone = _rows(job, own)
        rows = [
            one if one.key == "megatron" else replace(row, global_batch=own)
            for one, row in zip(alone, rows, strict=True)
        ]
    chosen = _recommended(job, rows)
    return tuple(_explained(row, chosen) for row in rows)


def _common_batch(job: Job, own: int) -> int:
    """The smallest global batch, not below the job's own, that data parallelism over all ranks can split.

    Megatron can use it too: its number of copies divides the ranks, and every PP divides the micro-batches of a copy.
    """
    return -(-own // job.world_size) * job.world_size


def _rows(job: Job, batch: int) -> list[Strategy]:
    megatron: EngineName = job.engine if job.traits.is_megatron else "llamafactory-megatron"
    ways: dict[StrategyKey, tuple[EngineName, str]] = {**_WAYS, "megatron": (megatron, "full")}
    full = tuple(name for name in TRAITS if name in {engine for engine, _ in ways.values()})
    return [_best_of(job, key, engine, method, full, batch) for key, (engine, method) in ways.items()]


def _best_of(
    job: Job, key: StrategyKey, engine: EngineName, method: str, engines: tuple[EngineName, ...], batch: int
) -> Strategy:
    # If the job sets accumulation, a plan's own edits make the batch.
    wanted = {} if job.training.global_batch_size is None else {"training.global_batch_size": batch}
    tried = with_values(job, {"engine": engine, "training.method": method, **wanted})
    row = Strategy(key=key, engine=engine, method=method, global_batch=batch, reason="refused")
    try:
        # All full fine-tuning is enumerated at once: the page has these plans already.
        # One batch for all: with the same accumulation, more copies would mean more work.
        plans = enumerate_plans(tried, engines if method == "full" else (engine,), batch)
    except ProblemsError as error:
        return replace(row, problem=error.problems[0])
    place = next((place for place, space in enumerate(plans.spaces) if space.job.engine == engine), None)
    rank = None if place is None else recommended(plans, place)
    refused = errors(check_resolved(tried, plans.shape, plans.gpu))
    if rank is None:
        return replace(row, problem=next(iter(refused), None))
    best = plans[rank]
    figures = best.estimate
    return replace(
        row,
        best=best,
        fits=figures.fits,
        memory_gib=figures.reserved_gib + figures.outside_gib,
        tokens_per_s_per_gpu=figures.tokens_per_s_per_gpu,
        hours=figures.hours,
        edits={"training.method": method, **wanted, **best.edits},
    )


def _recommended(job: Job, rows: Iterable[Strategy]) -> Strategy | None:
    fitting = [row for row in rows if row.fits]
    asked = [row for row in fitting if (row.method in ADAPTERS) == (job.training.method in ADAPTERS)]
    return max(asked or fitting, key=_merit, default=None)


def _merit(row: Strategy) -> tuple[float, float]:
    """Its speed; where that is not known, what enumerate_plans sorts by then: bubble and offload, then memory."""
    if row.tokens_per_s_per_gpu or row.best is None:
        return (row.tokens_per_s_per_gpu or 0.0, 0.0)
    waits = row.best.estimate.bubble_fraction + (row.best.job.traits.offloads != "none")
    return (-waits, -(row.memory_gib or 0.0))


def _explained(row: Strategy, chosen: Strategy | None) -> Strategy:
    """The row with its reason."""
    if row.best is None:
        return row
    figures = row.best.estimate
    worst = figures.stages[figures.peak_stage]
    term = max(TERMS, key=lambda name: getattr(worst, f"{name}_gib"))
    held = {"term": term, "term_gib": getattr(worst, f"{term}_gib")}
    if not row.fits:
        over = over_gpu_gib(figures)
        if not over:
            return replace(row, reason="host_too_large")
        return replace(row, reason="too_large", values={**held, "over_gib": over})
    if row is chosen:
        row, times = replace(row, recommended=True), figures.time_s
        if not times:
            return replace(row, reason="fits", values=held)
        part = max(times, key=lambda name: times[name])
        return replace(row, reason="fastest", values={"part": part, "share": times[part] / sum(times.values())})
    if row.method in ADAPTERS:
        trained = sum(stage.trainable_parameters for stage in figures.stages)
        return replace(row, reason="adapters", values={"trained": trained, "total": worst.parameters})
    ours, best = figures.time_s, chosen.best.estimate.time_s if chosen and chosen.best else None
    if not ours or not best or not row.tokens_per_s_per_gpu or not chosen or not chosen.tokens_per_s_per_gpu:
        return replace(row, reason="fits", values=held)
    part = max(ours, key=lambda name: ours[name] - best.get(name, 0.0))
    slower = 1 - row.tokens_per_s_per_gpu / chosen.tokens_per_s_per_gpu
    return replace(row, reason="slower", values={"part": part, "slower": slower})
