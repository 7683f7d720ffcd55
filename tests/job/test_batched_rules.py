"""Many plans are judged by the same rules as one. A rule is called once for each combination of what it reads."""

from functools import reduce

import numpy as np
import pytest

from backend.job.mapping import with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import errors
from backend.job.rules import RULES, check_resolved
from backend.job.rules.batched import Axis, Space, legal
from backend.job.rules.bound import BoundRule, problem
from tests.estimate.cases import job

CASES = {
    "vision": {"model__preset": "qwen3-vl-8b"},
    "experts": {"model__preset": "qwen3-30b-a3b"},
    "packing": {"model__preset": "qwen3-8b", "training__packing": True, "training__stage": "sft"},
    "overlap": {"model__preset": "qwen3-vl-8b", "parallel__overlap_grad_reduce": True,
                "parallel__overlap_param_gather": True},
    "pre-training": {"model__preset": "llama-3.1-8b", "training__stage": "pt"},
}  # fmt: skip
AXES = (
    Axis(paths=("parallel.tensor",), values=((1,), (2,), (3,), (8,))),
    Axis(paths=("parallel.pipeline",), values=((1,), (2,), (3,), (4,))),
    Axis(paths=("parallel.virtual_pipeline",), values=((1,), (2,), (3,))),
    Axis(paths=("parallel.context",), values=((1,), (2,), (64,))),
    Axis(paths=("parallel.expert",), values=((1,), (4,), (3,))),
    Axis(paths=("parallel.sequence",), values=((True,), (False,))),
    Axis(paths=("training.micro_batch_size",), values=((1,), (2,), (5,))),
    Axis(paths=("parallel.distributed_optimizer",), values=((True,), (False,))),
)


def space(base, count=300):
    generator = np.random.default_rng(7)
    codes = tuple(generator.integers(0, len(axis.values), count).astype(np.int32) for axis in AXES)
    return Space(job=base, axes=AXES, codes=codes)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_random_sample_is_judged_as_each_plan_alone(case):
    base = job(**case, training__global_batch_size=64)
    shape, gpu = resolve_model(base.model), resolve_gpu(base.cluster)
    whole = space(base)
    about_job = {error.code for error in errors(check_resolved(base, shape, gpu))}
    expected = []
    for row in range(whole.size):
        result = check_resolved(with_values(base, whole.values(row)), shape, gpu)
        refusals = [error for error in result if error.code not in about_job and
                    (error.severity == "error" or any(path in whole.axis_of for path in error.edit))]  # fmt: skip
        expected.append(not refusals)
    result = legal([whole], shape, gpu, RULES)
    stored = {tuple(codes) for codes in zip(*result.space.codes, strict=True)}
    assert [tuple(codes) in stored for codes in zip(*whole.codes, strict=True)] == expected
    assert result.space.size + sum(result.rejected.values()) == whole.size


def test_a_rule_is_asked_once_for_every_combination_of_what_it_reads():
    requested = []

    def rule(job, shape, gpu):
        requested.append(job.parallel.tensor)
        return problem("odd", "parallel.tensor") if job.parallel.tensor == 3 else None

    base = job()
    bound = BoundRule(function=rule, binds=lambda traits: True)
    result = legal([space(base)], resolve_model(base.model), resolve_gpu(base.cluster), [bound])
    assert result.rejected["odd"] > 0
    assert {*result.space.column("parallel.tensor").tolist()} == {1, 2, 8}
    assert len(requested) <= 1 + 4


def test_what_is_read_only_for_some_plans_tells_these_apart():
    def rule(job, shape, gpu):
        if job.parallel.tensor == 1:
            return None
        return problem("bad", "parallel.pipeline") if job.parallel.pipeline > 2 else None

    base = job()
    bound = BoundRule(function=rule, binds=lambda traits: True)
    result = legal([space(base)], resolve_model(base.model), resolve_gpu(base.cluster), [bound]).space
    tensor, pipeline = result.column("parallel.tensor"), result.column("parallel.pipeline")
    assert ((tensor == 1) | (pipeline <= 2)).all()
    assert (pipeline[tensor == 1] > 2).any()


def test_what_some_plans_read_and_others_do_not_is_asked_in_the_end():
    def rule(job, shape, gpu):
        size = job.parallel.pipeline if job.parallel.tensor in (1, 3) else job.parallel.context
        return problem("bad", "parallel.pipeline") if size == 2 else None

    base = job()
    bound = BoundRule(function=rule, binds=lambda traits: True)
    result = legal([space(base)], resolve_model(base.model), resolve_gpu(base.cluster), [bound]).space
    odd = np.isin(result.column("parallel.tensor"), (1, 3))
    assert (np.where(odd, result.column("parallel.pipeline"), result.column("parallel.context")) != 2).all()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_choices_apart_are_judged_as_every_combination_of_them(case):
    base = job(**case, training__global_batch_size=64)
    shape, gpu = resolve_model(base.model), resolve_gpu(base.cluster)
    sizes = Space(job=base, axes=AXES[:5], codes=space(base).codes[:5])
    choices = [Space(job=base, axes=(axis,), codes=(np.arange(len(axis.values), dtype=np.int32),)) for axis in AXES[5:]]
    whole = reduce(Space.times, choices, sizes)
    result, expected = (legal(factors, shape, gpu, RULES) for factors in ([sizes, *choices], [whole]))
    assert result.rejected == expected.rejected
    assert result.space.size + sum(result.rejected.values()) == whole.size == 300 * 2 * 3 * 2
    plans = [sorted(zip(*map(plan.space.column, whole.axis_of), strict=True)) for plan in (result, expected)]
    assert plans[0] == plans[1] != []


def test_an_answer_holds_for_another_job_as_long_as_what_was_read_is_the_same():
    base = job(training__global_batch_size=64)
    result = legal([space(base)], resolve_model(base.model), resolve_gpu(base.cluster), RULES)
    assert result.holds_for(with_values(base, {"training.cutoff_len": 128, "name": "other"}))
    assert not result.holds_for(with_values(base, {"training.packing": True}))
    assert not result.holds_for(with_values(base, {"cluster.nodes": 2}))
