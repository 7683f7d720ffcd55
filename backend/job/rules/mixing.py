"""Rules about several data sets that are mixed by shares.

The node draws by the shares with numpy's `choice`, which refuses probabilities that do not add up to 1
(datasets 4.0.0 arrow_dataset.py _interleave_map_style_datasets).
"""

from backend.job.job import Job
from backend.job.mixing import as_text, data_sets, mixing_of
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
rule = registrar(RULES)

SHARES, STRATEGY = "training.interleave_probs", "training.mix_strategy"
TOLERANCE = 1e-8
"""numpy compares the sum with the root of the smallest step of a float64."""


@rule(scopes.everywhere)
def shares_need_a_strategy(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory refuses shares of data sets that it only joins (hparams/data_args.py)."""
    if job.training.interleave_probs is None or mixing_of(job).interleaves:
        return None
    return problem("mix_without_strategy", SHARES, edit={STRATEGY: "interleave_under"})


@rule(scopes.everywhere)
def shares_are_probabilities(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """A data set with a share of 0 is never drawn, so oversampling would not end."""
    shares, names = mixing_of(job).shares, data_sets(job)
    if shares is None or not names:
        return None
    if len(shares) != names:
        return problem("mix_count", SHARES, edit={SHARES: as_text([1.0] * names)}, shares=len(shares), names=names)
    if min(shares) <= 0:
        return problem("mix_not_positive", SHARES)
    if abs(sum(shares) - 1) > TOLERANCE:
        return problem("mix_sum", SHARES, sum=f"{sum(shares):.6g}", edit={SHARES: as_text(shares)})
    return None


@rule(scopes.llamafactory)
def shares_fit_the_data_for_evaluation(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory mixes the data for evaluation with the same shares (hparams/data_args.py)."""
    evaluated, shares = job.eval_dataset, mixing_of(job).shares
    names = evaluated.split(",") if isinstance(evaluated, str) else evaluated or []
    if shares is None or not names or len(names) == len(shares):
        return None
    others = {key: value for key, value in job.extra.items() if key != "interleave_probs"}
    return problem("mix_count_of_evaluation", "training.eval_dataset", shares=len(shares), names=len(names),
                   edit={SHARES: None, **({"extra": others} if len(others) < len(job.extra) else {})})  # fmt: skip


@rule(scopes.llamafactory)
def mixing_once_needs_a_newer_package(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 passes `all_exhausted_without_replacement` on, and requires datasets of at most 4.0.0.

    That version raises ValueError for it (combine.py interleave_datasets).
    """
    if mixing_of(job).strategy != "interleave_once" or data_sets(job) < 2:
        return None
    return problem("mix_once", STRATEGY, "warning", edit={STRATEGY: "interleave_over"})


@rule(scopes.swift)
def swift_mixes_by_shares(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift interleaves only with shares, and knows two ways to stop (4.6.0 arguments/base_args/data_args.py)."""
    mixing, names = mixing_of(job), data_sets(job)
    if not mixing.interleaves or names < 2:
        return None
    equal: dict[str, object] = {} if mixing.shares else {SHARES: as_text([1.0] * names)}
    if mixing.strategy == "interleave_once":
        return problem("mix_once_of_swift", STRATEGY, edit={STRATEGY: "interleave_over", **equal})
    return problem("mix_shares_of_swift", SHARES, edit=equal) if equal else None
