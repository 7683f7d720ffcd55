"""Rules of GRPO, which only ms-swift's Hugging Face trainers carry out.

Sources: ms-swift 4.6.0 swift/arguments/rlhf_args.py, swift/rlhf_trainers/{args_mixin,grpo_trainer}.py,
swift/rewards/orm.py.
"""

from functools import wraps
from math import lcm

from backend.job.extra_values import mapping_of
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, Rule, problem, registrar

RULES: list[BoundRule] = []
rule = registrar(RULES)
REWARDS = ("accuracy", "format", "cosine", "repetition", "soft_overlong", "react_format", "toolbench")
"""Reward functions of ms-swift (swift/rewards/orm.py `orms`). The trainer gives texts to them, and its `math` reads the
messages of requests."""
SOLUTION = "solution"
WITH_SOLUTION = ("accuracy", "cosine", "toolbench")
"""Those that read the column `solution` of each row, as text (swift/rewards/orm.py `__call__`). The others read the
completion alone."""
_CACHE_SHARE = 5
"""DAPO penalises the last fifth of a completion: 4,096 of 20,480 tokens (https://arxiv.org/abs/2503.14476)."""


def grpo(function: Rule) -> Rule:
    """Register a rule that applies only to the stage grpo."""

    @wraps(function)
    def of_stage(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
        return function(job, shape, gpu) if job.training.stage == "grpo" else None

    rule(scopes.grpo)(of_stage)
    return function


def reward_names(job: Job) -> list[str]:
    """Return the names of the job's reward functions."""
    return [name.strip() for name in (job.training.grpo.rewards or "").split(",") if name.strip()]


def solution_rewards(job: Job) -> list[str]:
    """Return the job's reward functions of ms-swift that read the column `solution`."""
    return [name for name in reward_names(job) if name in WITH_SOLUTION] if job.training.stage == "grpo" else []


def solution_columns(job: Job) -> list[str]:
    """Return the names that the column `solution` may have in the data files; none if no reward reads it.

    ms-swift's argument `columns` gives columns of the files other names (4.6.0 swift/dataset/loader.py).
    """
    if not solution_rewards(job):
        return []
    renamed = mapping_of(job.extra.get("columns"))
    return [*(str(old) for old, new in renamed.items() if new == SOLUTION), SOLUTION]


@grpo
def something_is_rewarded(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """grpo_trainer.py: `You must specify reward_funcs or reward_model`."""
    if reward_names(job) or job.extra.get("reward_model"):
        return None
    choices = {name: {"training.grpo.rewards": name} for name in ("accuracy", "format")}
    return Problem(code="grpo_without_reward", field="training.grpo.rewards", choices=choices)


@grpo
def rewards_are_known(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """grpo_trainer.py _prepare_rewards: `reward_function ... is not implemented in swift.rewards`."""
    unknown = [name for name in reward_names(job) if name not in REWARDS]
    if not unknown or job.training.grpo.plugin:
        return None
    return problem("grpo_reward_unknown", "training.grpo.rewards", names=", ".join(unknown), known=", ".join(REWARDS))


@grpo
def each_reward_has_a_weight(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """grpo_trainer.py: `Number of reward weights must match number of reward functions`."""
    weights = job.extra.get("reward_weights")
    if not isinstance(weights, list | tuple) or job.extra.get("reward_model") or len(weights) == len(reward_names(job)):
        return None
    others = {key: value for key, value in job.extra.items() if key != "reward_weights"}
    return problem("grpo_weights_count", "extra.reward_weights", weights=len(weights), rewards=len(reward_names(job)),
                   edit={"extra": others})  # fmt: skip


@grpo
def soft_overlong_has_its_length(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """rlhf_args.py: `The soft_cache_length must be set when using soft overlong rewards.`"""
    if "soft_overlong" not in reward_names(job) or job.extra.get("soft_cache_length") is not None:
        return None
    length = max(1, job.training.grpo.completion_len // _CACHE_SHARE)
    return problem("grpo_soft_overlong", "training.grpo.rewards", tokens=length,
                   edit={"extra": {**job.extra, "soft_cache_length": length}})  # fmt: skip


@grpo
def groups_fill_the_global_batch(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """args_mixin.py _init_generation_batch_params: `generation_batch_size must be evenly divisible by
    num_generations`. It is the global batch, unless `extra` says otherwise."""
    group, micro_batches = job.training.grpo.group_size, job.training.micro_batch_size * job.data_parallel
    steps = job.extra.get("steps_per_generation")
    generated = job.extra.get("generation_batch_size")
    if not isinstance(generated, int):
        generated = micro_batches * (steps if isinstance(steps, int) else job.accumulation)
    if not micro_batches or generated % group == 0:
        return None
    return Problem(
        code="grpo_groups_uneven",
        field="training.grpo.group_size",
        values={"group": group, "batch": generated, "fitting": _fitting_group(generated, group)},
        choices=_even_choices(job, generated, group, micro_batches),
    )


def _even_choices(job: Job, generated: int, group: int, micro_batches: int) -> dict[str, dict[str, object]]:
    choices: dict[str, dict[str, object]] = {}
    if _fitting_group(generated, group) > 1:
        choices["group"] = {"training.grpo.group_size": _fitting_group(generated, group)}
    if generated == job.global_batch:
        batch = lcm(micro_batches, group) * -(-generated // lcm(micro_batches, group))
        choices["batch"] = (
            {"training.gradient_accumulation_steps": batch // micro_batches}
            if job.training.global_batch_size is None
            else {"training.global_batch_size": batch}
        )
    return choices


def _fitting_group(generated: int, group: int) -> int:
    """Return the largest size up to `group` that divides what is generated."""
    return next(size for size in range(min(group, generated), 0, -1) if generated % size == 0)


@grpo
def groups_fill_the_evaluation(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """args_mixin.py: `The global eval batch size must be evenly divisible by num_generations_eval`."""
    training, group = job.training, job.extra.get("num_generations_eval") or job.training.grpo.group_size
    batch = training.micro_batch_size * job.data_parallel
    if training.eval_steps is None or not batch or not isinstance(group, int) or batch % group == 0:
        return None
    fitting = _fitting_group(batch, group)
    return problem("grpo_evaluation_uneven", "training.eval_steps", group=group, batch=batch, fitting=fitting,
                   edit={"extra": {**job.extra, "num_generations_eval": fitting}})  # fmt: skip


@grpo
def prompts_are_not_packed(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The trainer gets rows and not tokens (grpo_trainer.py identity_data_collator), so there is nothing to pack."""
    if not job.training.packing:
        return None
    return problem("grpo_not_packed", "training.packing", edit={"training.packing": False})


@grpo
def prompts_are_not_cached(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """rlhf_args.py: `cached_dataset is not supported for GRPO.`"""
    names = [name.strip() for name in (job.training.dataset or "").split(",")]
    cached = [name for name in names if name.endswith("/")]
    if not cached:
        return None
    return problem("grpo_cached_data", "training.dataset", names=", ".join(cached))


@grpo
def vllm_needs_a_gpu(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """vLLM's memory share is one of a GPU; our CPU environment has no vLLM."""
    if job.training.grpo.rollout != "vllm" or gpu.device != "cpu":
        return None
    return problem("grpo_vllm_on_cpu", "training.grpo.rollout", edit={"training.grpo.rollout": "transformers"})


@grpo
def nothing_is_measured(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """No published run says what rollouts beside the training need in memory and time."""
    return problem("grpo_assumed", "training.stage", "note", completion=job.training.grpo.completion_len)
