"""What a user must know beside the figures: whether a plan fits its GPUs, and how far such figures were off."""

from dataclasses import replace

from backend.estimate.estimate import Estimate, estimate
from backend.estimate.model.lengths import longest_length, padding_share
from backend.job.batch import can_pack
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.model import ModelShape
from backend.job.presets import Accuracy, accuracy, expected_errors
from backend.job.problems import Problem


def over_memory(job: Job, figures: Estimate) -> list[Problem]:
    """A warning where the plan needs more than a GPU has; nothing where the GPU holds it."""
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
"""What stays free of each GPU while nothing says how far computed memory can be trusted: the margin that the words of
`cluster.memory_margin` advise."""


def is_memory_settled(job: Job) -> bool:
    """Whether the user's own margin, or a run that has calibrated the memory, says how far it can be trusted."""
    return bool(job.cluster.memory_margin) or job.cluster.calibration.memory_ratio is not None


def doubtful_above_gib(job: Job, memory_gib: float) -> float:
    """The computed memory above which a plan may not fit a GPU of this memory.

    It is the GPU memory less the median error of such estimates, most of which are too low. It is the whole GPU memory
    if the user has set a margin or a run has calibrated the memory.
    """
    return memory_gib if is_memory_settled(job) else (1 - expected_errors().memory.median) * memory_gib


def may_not_fit(job: Job, figures: Estimate) -> bool:
    """Whether a plan is computed to fit, but with less room than the usual error of such estimates."""
    return figures.fits and figures.reserved_gib + figures.outside_gib > doubtful_above_gib(job, figures.gpu_memory_gib)


def near_the_limit(job: Job, figures: Estimate) -> list[Problem]:
    """A note if the plan may not fit, or exceeds the memory by less than ROOM, with the usual error."""
    needed = (figures.reserved_gib + figures.outside_gib) / figures.gpu_memory_gib
    is_over = 1 < needed < 1 + HEADROOM and not is_memory_settled(job)
    if not is_over and not may_not_fit(job, figures):
        return []
    errors = expected_errors()
    values = {
        "filled": f"{100 * needed:.1f}",
        "median": f"{100 * errors.memory.median:.0f}",
        "low": f"{100 * errors.memory.low_share:.0f}",
        "sources": errors.sources,
        "case": "over" if is_over else "within",
    }
    return [Problem(code="near_the_limit", field="cluster.memory_margin", severity="note", values=values)]


def over_host_memory(job: Job, figures: Estimate) -> list[Problem]:
    """A warning where what is offloaded needs more than a node's RAM; nothing where that is not known."""
    memory_gib = job.cluster.host_memory_gib
    if memory_gib is None or not over_host_gib(job, figures):
        return []
    values = {"needed_gib": round(figures.host_memory_gib, 1), "memory_gib": round(memory_gib, 1)}
    field = "parallel.optimizer_offload_fraction" if job.traits.is_megatron else "engine"
    return [Problem(code="host_memory_exceeded", field=field, severity="warning", values=values)]


MUCH_PADDING = 0.3
"""Of a step, that is worth a word."""


def much_padding(job: Job, figures: Estimate) -> list[Problem]:
    """A note where much of a step is padding, or waiting for long samples; with what packing would make of the hours.

    Nothing while nobody says how long samples are.
    """
    share = padding_share(job)
    if share < MUCH_PADDING:
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
    """Memory that a plan needs beyond a GPU's; 0 where that suffices."""
    return max(0.0, figures.reserved_gib + figures.outside_gib - figures.gpu_memory_gib)


def over_host_gib(job: Job, figures: Estimate) -> float:
    """RAM that a plan's offloading needs beyond a node's; 0 where that suffices or is not known."""
    memory_gib = job.cluster.host_memory_gib
    return 0.0 if memory_gib is None else max(0.0, figures.host_memory_gib - memory_gib)


def accuracy_of(job: Job, shape: ModelShape) -> Accuracy | None:
    """The errors on the project's own sources for runs like the job's: of its kind where there are enough of them, else
    of its family. None if neither was ever compared.
    """
    family = "megatron" if job.traits.is_megatron else "hugging_face"
    adapted = job.training.method in ("lora", "qlora")
    kind = kind_of_run(vision=bool(shape.vision), experts=bool(shape.experts), adapters=adapted)
    return accuracy().get(f"{family}-{kind}") or accuracy().get(family)


def kind_of_run(*, vision: bool, experts: bool, adapters: bool) -> str:
    """What runs are told apart by when errors are counted, besides the family of their engine."""
    return "vision" if vision else "lora" if adapters else "moe" if experts else "dense"
