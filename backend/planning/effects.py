"""What another value of one parameter does to a job: memory, bubble and speed of the job with that alone changed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backend.estimate import Estimate, estimate_resolved, over_gpu_gib, over_host_gib
from backend.job.job import Job
from backend.job.mapping import get_value, parameters, with_values
from backend.job.model import ModelShape
from backend.job.parameters import Parameter
from backend.job.presets import gpus, resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check_resolved
from backend.job.rules.stages import LAYOUT, layout_edit
from backend.planning.even_out import evened_out

FELT = 5e-4
"""Share by which a figure must differ to be told apart."""
_PARTS = 2
"""Steps between the ends of a share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """A value and what the job's figures are with it."""

    value: Any
    is_own: bool
    """Whether it is the job's present value."""
    edits: Mapping[str, Any]
    """Job path -> value: what choosing it writes."""
    problem: Problem | None = None
    """Why the job cannot have it; then there are no figures."""
    memory_gib: float | None = None
    """On the fullest GPU in all: the allocator's reserve and what lies outside it."""
    host_gib: float = 0.0
    """RAM of a node that offloading takes."""
    fits: bool = False
    over_gib: float = 0.0
    """Memory that it needs beyond the GPU's."""
    over_host_gib: float = 0.0
    """RAM that it needs beyond a node's, where that is known."""
    tokens_per_s_per_gpu: float | None = None
    bubble_fraction: float = 0.0
    global_batch: int = 0


def effects(job: Job, path: str) -> tuple[Effect, ...] | None:
    """The present value of a parameter and others near it, in order, each with the figures of the job that has it.

    Empty where none of these figures differ; None where there is no other value to try, as of a name or a path. Raises
    KeyError for what is no parameter, ProblemsError where model or GPU is not known or the job's plan has no estimate.
    """
    parameter = parameters()[path]
    shape = resolve_model(job.model)
    own = _effective(job, path)
    others = [value for value in _others(parameter, own) if value != own]
    if path == LAYOUT:
        others = _layouts(job, shape)
    if not others:
        return None
    mine = _tried(job, shape, path, own, is_own=True)
    if mine.problem is not None:
        raise ProblemsError([mine.problem])
    found = [_tried(job, shape, path, value) for value in others]
    allowed = [item for item in found if item.problem is None]
    if allowed and not any(_is_felt(mine, item) for item in allowed):
        return ()
    return tuple(_ordered(parameter, [mine, *found]))


def _effective(job: Job, path: str) -> Any:
    """The present value, or what takes effect in place of none."""
    inferred: Mapping[str, Any] = {
        "parallel.recompute": job.recompute,
        "parallel.recompute_num_layers": 1,
        "training.global_batch_size": job.global_batch,
    }
    value = get_value(job, path)
    if path == "training.gradient_accumulation_steps":
        return job.accumulation
    return inferred.get(path) if value is None else value


def _others(parameter: Parameter, own: Any) -> Iterator[Any]:
    if parameter.path == "cluster.gpu":
        yield from (gpu.key for gpu in gpus().values() if gpu.device == "cuda")
    elif parameter.kind == "bool":
        yield not own
    elif parameter.kind == "choice":
        yield from parameter.choices
    elif parameter.kind == "list" and parameter.choices:
        yield from ((choice,) for choice in parameter.choices)
    elif parameter.kind == "int" and own is not None:
        low, high = int(parameter.minimum or 0), int(parameter.maximum or own * 4 + 1)
        near = (own // 2, own * 2) if own // 2 >= max(low, 1) else (own * 2, own * 4) if own else (1, 2)
        yield from (value for value in near if low <= value <= high)
    elif parameter.kind == "float" and parameter.minimum == 0 and parameter.maximum == 1:
        yield from (part / _PARTS for part in range(_PARTS + 1))
    elif parameter.kind == "float" and own:
        least, most = parameter.minimum or 0.0, parameter.maximum or own * 2
        yield from (value for value in (own / 2, own * 2) if least <= value <= most)


def _layouts(job: Job, shape: ModelShape) -> list[Any]:
    """What the stages could be: cut into equal parts, and with times as equal as can be."""
    gpu = resolve_gpu(job.cluster)
    if not job.traits.is_megatron or job.parallel.pipeline == 1 or errors(check_resolved(job, shape, gpu)):
        return []
    evened = evened_out(job, shape, gpu, estimate_resolved(job, shape, gpu))
    found = [None, evened and evened.layout]
    return [layout for layout in dict.fromkeys(found) if layout != job.parallel.pipeline_layout]


def _tried(job: Job, shape: ModelShape, path: str, value: Any, *, is_own: bool = False) -> Effect:
    """The job with the value, all else as it is; a wanted global batch gives way to another accumulation."""
    edits: dict[str, Any] = {path: value}
    if path == LAYOUT and value:
        edits = layout_edit(job, value)
    if path == "training.gradient_accumulation_steps":
        edits["training.global_batch_size"] = None
    changed = job if is_own else with_values(job, edits)
    about: dict[str, Any] = {"value": value, "is_own": is_own, "edits": edits}
    try:
        gpu = resolve_gpu(changed.cluster)
        if problems := errors(check_resolved(changed, shape, gpu)):
            return Effect(**about, problem=problems[0])
        figures: Estimate = estimate_resolved(changed, shape, gpu)
    except ProblemsError as error:
        return Effect(**about, problem=error.problems[0])
    return Effect(
        **about,
        memory_gib=figures.reserved_gib + figures.outside_gib,
        host_gib=figures.host_memory_gib,
        fits=figures.fits,
        over_gib=over_gpu_gib(figures),
        over_host_gib=over_host_gib(changed, figures),
        tokens_per_s_per_gpu=figures.tokens_per_s_per_gpu,
        bubble_fraction=figures.bubble_fraction,
        global_batch=changed.global_batch,
    )


def _is_felt(one: Effect, other: Effect) -> bool:
    pairs = (
        (one.memory_gib, other.memory_gib),
        (one.host_gib, other.host_gib),
        (one.tokens_per_s_per_gpu, other.tokens_per_s_per_gpu),
        (one.bubble_fraction, other.bubble_fraction),
    )
    return any(abs((a or 0.0) - (b or 0.0)) > FELT * max(abs(a or 0.0), abs(b or 0.0)) for a, b in pairs)


def _ordered(parameter: Parameter, found: list[Effect]) -> list[Effect]:
    """Numbers by size, choices as the parameter lists them, a switch off before on."""
    if parameter.kind in ("int", "float", "bool"):
        return sorted(found, key=lambda item: item.value)
    if parameter.kind == "choice":
        return sorted(found, key=lambda item: parameter.choices.index(item.value))
    return found
