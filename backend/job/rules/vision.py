"""Rules for the vision parts of a model on Megatron-Core: plans that an engine trains wrongly.

The list of plans (batched.py) omits such plans, whatever the severity of the problem in a job file. The edit of the
warning leads to a plan that trains correctly.
"""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, registrar
from backend.job.trained import trained_parts

RULES: list[BoundRule] = []
rule = registrar(RULES)

TRAINED_WRONGLY = frozenset({"vision_replicas_drift", "vision_gradients_wrong", "deep_stack_gradients_wrong"})
"""Codes of plans that train something wrongly."""
FROZEN: dict[str, object] = {"training.freeze.vision_tower": True, "training.freeze.projector": True}


@rule(scopes.wrong_vision_gradients)
def vision_replicas_stay_equal(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: without sequence parallel, nothing sums the gradients of TP ranks that split the images."""
    if not _is_split(job, shape) or not _drifts(job, gpu):
        return None
    return _problem(job, shape, drifts=True)


@rule(scopes.wrong_vision_gradients)
def vision_gradients_are_whole(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: the gradient is 1/TP of the right one, or only that of the rank's own part of the sequence."""
    if not _is_split(job, shape) or _drifts(job, gpu):
        return None
    return _problem(job, shape, drifts=False)


@rule(scopes.wrong_deep_stack_gradients)
def deep_stack_gradients_are_whole(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge: under sequence parallel, the deep-stack mergers get 1/TP of the right gradient.

    The tower gets a wrong gradient too, because a part of it comes through the mergers, frozen or not. LoRA freezes it.
    """
    if shape.vision is None or not shape.vision.deep_stack:
        return None
    if shape.model_type not in job.traits.deep_stack_needs_whole_sequences or job.training.method != "full":
        return None
    trained = trained_parts(job, shape)
    if not (trained.tower or trained.deep_stack) or not job.training.images_per_sample:
        return None
    if gpu.device == "cpu" or not job.sequence_parallel:
        return None
    # Megatron-Core needs sequence parallel for experts under TP.
    edit: dict[str, object] = {"parallel.tensor": 1} if shape.experts else {"parallel.sequence": False}
    case = "experts" if shape.experts else ""
    return Problem(
        code="deep_stack_gradients_wrong",
        field=next(iter(edit)),
        severity="warning",
        values={"tensor": job.parallel.tensor, "model_type": shape.model_type, "case": case},
        edit=edit,
        choices={} if job.training.freeze.language_model else {"freeze": dict(FROZEN)},
    )


def _is_split(job: Job, shape: ModelShape) -> bool:
    """Return whether a sequence with images is split while a vision part of the model is trained."""
    if shape.vision is None or shape.model_type not in job.traits.vision_needs_whole_sequences:
        return False
    trained = trained_parts(job, shape)
    is_trained = trained.tower or trained.merger or (trained.deep_stack and shape.vision.deep_stack > 0)
    if not is_trained or not job.training.images_per_sample:
        return False
    return job.parallel.tensor > 1 or job.parallel.context > 1


def _drifts(job: Job, gpu: Gpu) -> bool:
    """Return whether sequence parallel is off or unavailable: Megatron-Core has none on CPU ranks."""
    parallel = job.parallel
    if parallel.tensor == 1:
        return False
    # mcore_adapter turns it on if experts are split too.
    return gpu.device == "cpu" or not (parallel.sequence or parallel.expert > 1)


def _problem(job: Job, shape: ModelShape, *, drifts: bool) -> Problem:
    sizes = {"tensor": job.parallel.tensor, "context": job.parallel.context}
    edit: dict[str, object] = {f"parallel.{name}": 1 for name, size in sizes.items() if size > 1}
    case = _why_not_frozen(job, shape)
    # If the language model were frozen as well, nothing would be trained.
    can_freeze = not case and not job.training.freeze.language_model
    return Problem(
        code="vision_replicas_drift" if drifts else "vision_gradients_wrong",
        field="parallel.tensor" if sizes["tensor"] > 1 else "parallel.context",
        severity="error" if drifts else "warning",
        values={**sizes, "engine": job.engine, "model_type": shape.model_type, "case": case},
        edit=edit,
        choices={"freeze": dict(FROZEN)} if can_freeze else {},
    )


def _why_not_frozen(job: Job, shape: ModelShape) -> str:
    """Return why the freeze switches do not help; empty if they help."""
    if job.training.stage == "pt" and not job.traits.freezes_in_pretraining:
        return "pt"
    has_mergers = shape.vision is not None and shape.vision.deep_stack > 0
    return "deep_stack" if has_mergers and job.traits.deep_stack_frozen_with == "nothing" else ""
