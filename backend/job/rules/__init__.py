"""Every rule of which values go together: one function each, saying why a job or a plan is out.

A rule takes (job, model shape, GPU) and returns a Problem or None. `check` runs those that bind the job's engine.
What a single value may be (type, range, choices) is checked where the file is read: mapping.py. What a launch needs
besides: launch_rules.py. Where a rule comes from an engine's own check, that check stands beside it.
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
    """All that is wrong with the job as a plan, in the order of the rules; what cannot be resolved comes alone."""
    try:
        gpu, shape = resolve_gpu(job.cluster), resolve_model(job.model)
    except ProblemsError as error:
        return list(error.problems)
    return check_resolved(job, shape, gpu)


def check_resolved(job: Job, shape: ModelShape, gpu: Gpu) -> list[Problem]:
    """`check` for a model and a GPU that are at hand. Many plans at once: batched.py."""
    found = (rule.function(job, shape, gpu) for rule in RULES if rule.binds(job.traits))
    return [problem for problem in found if problem is not None]
