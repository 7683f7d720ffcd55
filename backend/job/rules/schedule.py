"""Rules of the learning-rate schedule and its warm-up."""

from math import ceil

from backend.job.batch import total_steps
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
rule = registrar(RULES)

USUAL_WARMUP = 0.03


@rule(scopes.everywhere)
def warmup_is_a_share(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers 5.6.0 training_args.py get_warmup_steps reads 1 as one step.

    Megatron-Core asserts that a step is left after the warm-up.
    """
    if job.training.warmup_ratio < 1:
        return None
    return problem("warmup_is_all", "training.warmup_ratio", edit={"training.warmup_ratio": USUAL_WARMUP})


@rule(scopes.mcore_adapter)
def warmup_leaves_steps(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core optimizer_param_scheduler.py: `assert self.lr_warmup_steps < self.lr_decay_steps`.

    transformers rounds the number of warm-up steps up, so a training of one step cannot have any.
    """
    ratio = job.training.warmup_ratio
    steps = total_steps(job) if 0 < ratio < 1 else None
    if steps is None or ceil(steps * ratio) < steps:
        return None
    return problem("warmup_without_rest", "training.warmup_ratio", steps=steps,
                   edit={"training.warmup_ratio": USUAL_WARMUP if steps > 1 else 0.0})  # fmt: skip


@rule(scopes.everywhere)
def constant_schedule_says_whether_it_warms_up(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers optimization.py get_scheduler: `constant` takes no warm-up. Megatron-Core always warms up."""
    training = job.training
    if training.lr_scheduler != "constant" or not training.warmup_ratio:
        return None
    code = "constant_warms_up" if job.traits.is_megatron else "constant_without_warmup"
    choices: dict[str, dict[str, object]] = {
        "warm": {"training.lr_scheduler": "constant_with_warmup"},
        "cold": {"training.warmup_ratio": 0.0},
    }
    values = {"engine": job.engine, "ratio": training.warmup_ratio}
    return Problem(code=code, field="training.warmup_ratio", severity="note", values=values, choices=choices)
