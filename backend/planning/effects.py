"""Effect of another value of one parameter on a job: its memory, bubble and speed with only that value changed."""

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
from backend.planning.rebalance import rebalance

MIN_CHANGE = 5e-4
"""Share by which a figure must differ to count as changed."""
_FRACTION_STEPS = 2
"""Steps between 0 and 1 for a parameter that is a fraction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """A value of a parameter, and the figures of the job that has it."""

    value: Any
    is_own: bool
    """Whether it is the job's present value."""
    edits: Mapping[str, Any]
    """Job path -> value: the edits that select it."""
    problem: Problem | None = None
    """Why the job cannot have this value. Then there are no figures."""
    memory_gib: float | None = None
    """Memory of the GPU with the most in use: what the allocator reserves, plus memory outside PyTorch."""
    host_gib: float = 0.0
    """RAM of a node that offloading takes."""
    fits: bool = False
    over_gib: float = 0.0
    """GPU memory that the job lacks."""
    over_host_gib: float = 0.0
    """RAM of a node that the job lacks, if the RAM is known."""
    tokens_per_s_per_gpu: float | None = None
    bubble_fraction: float = 0.0
    global_batch: int = 0


def effects(job: Job, path: str) -> tuple[Effect, ...] | None:
    """Return the present value of a parameter and other values near it, in order, each with the job's figures.

    Returns an empty tuple if no figure changes, and None if there is no other value to try, as for a name or a path.
    Raises KeyError if the path is no parameter, and ProblemsError if the model or the GPU is not known or if the job's
    plan has no estimate.
    """
    parameter = parameters()[path]
    if path.startswith("cluster.scheduler."):
        return ()  # no figure depends on it, and the job may have no scheduler
    shape = resolve_model(job.model)
    own_value = _effective(job, path)
    other_values = [value for value in _other_values(parameter, own_value) if value != own_value]
    if path == LAYOUT:
        other_values = _layouts(job, shape)
    if not other_values:
        return None
    own_effect = _effect(job, shape, path, own_value, is_own=True)
    if own_effect.problem is not None:
        raise ProblemsError([own_effect.problem])
    other_effects = [_effect(job, shape, path, value) for value in other_values]
    allowed = [effect for effect in other_effects if effect.problem is None]
    if allowed and not any(_differs(own_effect, effect) for effect in allowed):
        return ()
    return tuple(_in_order(parameter, [own_effect, *other_effects]))


def _effective(job: Job, path: str) -> Any:
    """Return the present value, or the value that takes effect if none is set."""
    inferred: Mapping[str, Any] = {
        "parallel.recompute": job.recompute,
        "parallel.recompute_num_layers": 1,
        "training.global_batch_size": job.global_batch,
    }
    value = get_value(job, path)
    if path == "training.gradient_accumulation_steps":
        return job.accumulation
    return inferred.get(path) if value is None else value


def _other_values(parameter: Parameter, own: Any) -> Iterator[Any]:
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
        neighbours = (own // 2, own * 2) if own // 2 >= max(low, 1) else (own * 2, own * 4) if own else (1, 2)
        yield from (value for value in neighbours if low <= value <= high)
    elif parameter.kind == "float" and parameter.minimum == 0 and parameter.maximum == 1:
        yield from (step / _FRACTION_STEPS for step in range(_FRACTION_STEPS + 1))
    elif parameter.kind == "float" and own:
        lowest, highest = parameter.minimum or 0.0, parameter.maximum or own * 2
        yield from (value for value in (own / 2, own * 2) if lowest <= value <= highest)


def _layouts(job: Job, shape: ModelShape) -> list[Any]:
    """Return the other layouts to try: equal numbers of layers, and times as equal as possible."""
    gpu = resolve_gpu(job.cluster)
    if not job.traits.is_megatron or job.parallel.pipeline == 1 or errors(check_resolved(job, shape, gpu)):
        return []
    rebalanced = rebalance(job, shape, gpu, estimate_resolved(job, shape, gpu))
    layouts = [None, rebalanced and rebalanced.layout]
    return [layout for layout in dict.fromkeys(layouts) if layout != job.parallel.pipeline_layout]


def _effect(job: Job, shape: ModelShape, path: str, value: Any, *, is_own: bool = False) -> Effect:
    """Return the effect of a value, with all other values unchanged.

    A new accumulation replaces the global batch that the job sets.
    """
    edits: dict[str, Any] = {path: value}
    if path == LAYOUT and value:
        edits = layout_edit(job, value)
    if path == "training.gradient_accumulation_steps":
        edits["training.global_batch_size"] = None
    changed = job if is_own else with_values(job, edits)
    common: dict[str, Any] = {"value": value, "is_own": is_own, "edits": edits}
    try:
        gpu = resolve_gpu(changed.cluster)
        if problems := errors(check_resolved(changed, shape, gpu)):
            return Effect(**common, problem=problems[0])
        figures: Estimate = estimate_resolved(changed, shape, gpu)
    except ProblemsError as error:
        return Effect(**common, problem=error.problems[0])
    return Effect(
        **common,
        memory_gib=figures.reserved_gib + figures.outside_gib,
        host_gib=figures.host_memory_gib,
        fits=figures.fits,
        over_gib=over_gpu_gib(figures),
        over_host_gib=over_host_gib(changed, figures),
        tokens_per_s_per_gpu=figures.tokens_per_s_per_gpu,
        bubble_fraction=figures.bubble_fraction,
        global_batch=changed.global_batch,
    )


def _differs(own_effect: Effect, other_effect: Effect) -> bool:
    pairs = (
        (own_effect.memory_gib, other_effect.memory_gib),
        (own_effect.host_gib, other_effect.host_gib),
        (own_effect.tokens_per_s_per_gpu, other_effect.tokens_per_s_per_gpu),
        (own_effect.bubble_fraction, other_effect.bubble_fraction),
    )
    return any(abs((a or 0.0) - (b or 0.0)) > MIN_CHANGE * max(abs(a or 0.0), abs(b or 0.0)) for a, b in pairs)


def _in_order(parameter: Parameter, effects: list[Effect]) -> list[Effect]:
    """Sort numbers by size, choices as the parameter lists them, and a switch off before on."""
    if parameter.kind in ("int", "float", "bool"):
        return sorted(effects, key=lambda effect: effect.value)
    if parameter.kind == "choice":
        return sorted(effects, key=lambda effect: parameter.choices.index(effect.value))
    return effects
