"""The rules of which values go together. Each is one function, which returns why a job or a plan is refused.

A rule takes (job, model shape, GPU) and returns a Problem or None. `check` runs the rules that apply to the job's
engine. mapping.py checks a single value (type, range, choices) when it reads the file. launch_rules.py has the further
needs of a launch. If a rule comes from an engine's own check, its docstring names that check.
"""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError
from backend.job.rules import common, extra, megatron, prepare, sharded, sizes, stages, vision
from backend.job.rules.bound import BoundRule

RULES: tuple[BoundRule, ...] = (
    *common.RULES,
    *sharded.RULES,
    *vision.RULES,
    *sizes.RULES,
    *stages.RULES,
    *megatron.RULES,
    *prepare.RULES,
    *extra.RULES,
)


def check(job: Job) -> list[Problem]:
    """Return all problems of the job as a plan, in the order of the rules.

    If the model or the GPU cannot be resolved, that is the only problem.
    """
    try:
        gpu, shape = resolve_gpu(job.cluster), resolve_model(job.model)
    except ProblemsError as error:
        return list(error.problems)
    return check_resolved(job, shape, gpu)


def check_resolved(job: Job, shape: ModelShape, gpu: Gpu) -> list[Problem]:
    """Return the problems for a resolved model and GPU. batched.py does it for many plans at once."""
    answers = (rule.function(job, shape, gpu) for rule in RULES if rule.binds(job.traits))
    return [problem for problem in answers if problem is not None]
