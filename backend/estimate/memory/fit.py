"""Warnings beside the figures: whether a plan fits its GPUs, and the interval of its need."""

from collections.abc import Iterator
from dataclasses import replace

from backend.estimate.estimate import Estimate, estimate
from backend.estimate.interval import memory_interval
from backend.estimate.memory.padded_packs import is_padded
from backend.estimate.model.lengths import longest_length, padding_share
from backend.job.batch import can_pack
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.model import ModelShape
from backend.job.presets import Accuracy, accuracy
from backend.job.problems import Problem, errors
from backend.job.rules import check


def over_memory(job: Job, figures: Estimate) -> list[Problem]:
    """Return a warning if the plan needs more memory than a GPU has."""
    if not over_gpu_gib(figures):
        return []
    values = {
        "needed_gib": round(figures.reserved_gib + figures.outside_gib, 1),
        "stage": figures.peak_stage,
        "memory_gib": round(figures.gpu_memory_gib, 1),
        "case": "sizes" if job.traits.is_megatron else "sharding",
    }
    return [Problem(code="over_memory", field="parallel", severity="warning", values=values)]


HEADROOM = 0.05
"""The share of each GPU that a recommended plan leaves free if no plan surely fits. The help text of
`cluster.memory_margin` recommends this margin."""


def is_memory_settled(job: Job) -> bool:
    """Return whether the user's margin says how much memory stays free, so that no interval is needed."""
    return bool(job.cluster.memory_margin)


def surely_fits_gib(job: Job, memory_gib: float) -> float:
    """Return the computed memory up to which a plan fits a GPU of this memory by the upper bound of its interval.

    It is the whole GPU memory if the user has set a margin.
    """
    return memory_gib if is_memory_settled(job) else memory_gib / memory_interval(job).high


def may_fit_gib(job: Job, memory_gib: float) -> float:
    """Return the computed memory above which a plan does not fit, even by the lower bound of its interval."""
    return memory_gib if is_memory_settled(job) else memory_gib / memory_interval(job).low


def is_close(figures: Estimate) -> bool:
    """Return whether the interval of the need holds the GPU's memory, so that the plan may fit or not."""
    return figures.fit == "close"


def _safer_changes(job: Job) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield changes of a job that need less memory, the least change first."""
    training = job.training
    recompute: dict[str, object] = {"parallel.recompute": "full"}
    batch: dict[str, object] = {"training.micro_batch_size": training.micro_batch_size // 2}
    if training.gradient_accumulation_steps is not None:
        batch["training.gradient_accumulation_steps"] = 2 * training.gradient_accumulation_steps
    can_halve = training.micro_batch_size % 2 == 0
    if can_halve:
        yield "micro_batch", batch
    if job.recompute != "full":
        yield "recompute", recompute
        if can_halve:
            yield "both", {**batch, **recompute}


def _safer(job: Job) -> tuple[str, dict[str, object], float] | None:
    """Return the first change with which the plan surely fits, and the upper bound of its need then; None if none."""
    for case, change in _safer_changes(job):
        changed = with_values(job, change)
        if errors(check(changed)):
            continue
        figures = estimate(changed)
        if figures.fit == "fits" and figures.need_gib_high is not None:
            return case, change, figures.need_gib_high
    return None


def near_the_limit(job: Job, figures: Estimate) -> list[Problem]:
    """Return a note with the interval of the need if it holds the GPU's memory, and what would make the plan fit."""
    if figures.fit != "close":
        return []
    field = "cluster.memory_margin"
    values = {
        "needed": f"{figures.reserved_gib + figures.outside_gib:.1f}",
        "memory": f"{figures.gpu_memory_gib:.1f}",
    }
    if figures.need_gib_low is None or figures.need_gib_high is None:
        return [Problem(code="near_the_limit_assumed", field=field, severity="note", values=values)]
    values |= {
        "low": f"{figures.need_gib_low:.1f}",
        "high": f"{figures.need_gib_high:.1f}",
        "case": "within" if figures.fits else "over",
    }
    note = Problem(code="near_the_limit", field=field, severity="note", values=values)
    safer = _safer(job)
    if safer is None:
        return [note]
    case, change, most = safer
    return [replace(note, values={**values, "case": case, "most": f"{most:.1f}"}, edit=change)]


def over_host_memory(job: Job, figures: Estimate) -> list[Problem]:
    """Return a warning if offloading needs more RAM than a node has; nothing if that is unknown."""
    memory_gib = job.cluster.host_memory_gib
    if memory_gib is None or not over_host_gib(job, figures):
        return []
    values = {"needed_gib": round(figures.host_memory_gib, 1), "memory_gib": round(memory_gib, 1)}
    field = "parallel.optimizer_offload_fraction" if job.traits.is_megatron else "engine"
    return [Problem(code="host_memory_exceeded", field=field, severity="warning", values=values)]


MUCH_PADDING = 0.3
"""The share of padding in a step that deserves a note."""


def much_padding(job: Job, figures: Estimate) -> list[Problem]:
    """Return a note if padding, or waiting for long samples, takes much of a step. The note has the hours with packing.

    Returns nothing if the length of samples is unknown, and for padded packs: rules/attention.py
    unfused_packs_nothing warns of them.
    """
    share = padding_share(job)
    if share < MUCH_PADDING or is_padded(job):
        return []
    values = {
        "share": f"{100 * share:.0f}",
        "mean": round(job.sequence_tokens),
        "length": round(longest_length(job)),
        "case": "experts" if job.parallel.expert > 1 else "samples",
    }
    note = Problem(code="mostly_padding", field="training.sample_tokens", severity="note", values=values)
    if not can_pack(job):
        return [note]
    edit = {"training.packing": True}
    packed = estimate(with_values(job, edit)).hours
    if figures.hours is None or packed is None or packed >= figures.hours:
        return [note]
    hours = {"hours": f"{figures.hours:.2g}", "packed": f"{packed:.2g}"}
    return [replace(note, code="packing_pays", values={**values, **hours}, edit=edit)]


def over_gpu_gib(figures: Estimate) -> float:
    """Return the memory that a plan needs beyond that of a GPU; 0 if it fits."""
    return max(0.0, figures.reserved_gib + figures.outside_gib - figures.gpu_memory_gib)


def over_host_gib(job: Job, figures: Estimate) -> float:
    """Return the RAM that offloading needs beyond that of a node; 0 if it fits or if the RAM is unknown."""
    memory_gib = job.cluster.host_memory_gib
    return 0.0 if memory_gib is None else max(0.0, figures.host_memory_gib - memory_gib)


def accuracy_of(job: Job, shape: ModelShape) -> Accuracy | None:
    """Return the errors on the project's own sources for runs like this job: runs of its kind if there are enough, else
    of its engine family. None if neither was compared."""
    family = "megatron" if job.traits.is_megatron else "hugging_face"
    adapted = job.training.method in ("lora", "qlora")
    kind = kind_of_run(vision=bool(shape.vision), experts=bool(shape.experts), adapters=adapted)
    return accuracy().get(f"{family}-{kind}") or accuracy().get(family)


def kind_of_run(*, vision: bool, experts: bool, adapters: bool) -> str:
    """Return the kind of a run, by which errors are counted within an engine family."""
    return "vision" if vision else "lora" if adapters else "moe" if experts else "dense"
