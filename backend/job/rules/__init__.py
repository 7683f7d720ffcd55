"""The rules of which values go together. Each is one function, which returns why a job or a plan is refused.

A rule takes (job, model shape, GPU) and returns a Problem or None. `check` runs the rules that apply to the job's
engine. mapping.py checks a single value (type, range, choices) when it reads the file. launch_rules.py has the further
needs of a launch. If a rule comes from an engine's own check, its docstring names that check.
"""

from contextlib import suppress
from typing import cast

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu, known_model, resolve_gpu
from backend.job.problems import Problem, ProblemsError
from backend.job.rules import (
    adapters,
    attention,
    chosen_keys,
    common,
    extra,
    grpo,
    internvl,
    liger,
    megatron,
    mixing,
    mtp,
    packing,
    prepare,
    schedule,
    sharded,
    sizes,
    sparse,
    stages,
    swift,
    vision,
)
from backend.job.rules.bound import BoundRule
from backend.job.unestimated import ShapeUnknownError, UnestimatedModel, UnknownShape

RULES: tuple[BoundRule, ...] = (
    *common.RULES,
    *schedule.RULES,
    *adapters.RULES,
    *sparse.RULES,
    *chosen_keys.RULES,
    *attention.RULES,
    *packing.RULES,
    *sharded.RULES,
    *vision.RULES,
    *sizes.RULES,
    *stages.RULES,
    *megatron.RULES,
    *liger.RULES,
    *mtp.RULES,
    *swift.RULES,
    *internvl.RULES,
    *grpo.RULES,
    *prepare.RULES,
    *mixing.RULES,
    *extra.RULES,
)


def check(job: Job) -> list[Problem]:
    """Return all problems of the job as a plan, in the order of the rules.

    If the model is not known or the GPU cannot be resolved, that is the only problem.
    """
    try:
        gpu, model = resolve_gpu(job.cluster), known_model(job.model)
    except ProblemsError as error:
        return list(error.problems)
    return check_resolved(job, model, gpu)


def check_resolved(job: Job, model: ModelShape | UnestimatedModel, gpu: Gpu) -> list[Problem]:
    """Return the problems for a known model and a resolved GPU. batched.py does it for many plans at once.

    A model without an estimate is a warning. The rules that need its shape do not apply.
    """
    if isinstance(model, UnestimatedModel):
        shape = cast(ModelShape, UnknownShape(model.model_type))
        return [model.reason, *_answers(job, shape, gpu)]
    return _answers(job, model, gpu)


def _answers(job: Job, shape: ModelShape, gpu: Gpu) -> list[Problem]:
    problems = []
    for rule in RULES:
        if rule.binds(job.traits):
            with suppress(ShapeUnknownError):
                problems.append(rule.function(job, shape, gpu))
    return [problem for problem in problems if problem is not None]
