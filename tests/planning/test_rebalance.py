"""Rebalanced stages: the offered layout is legal, fits and is faster."""

import pytest

from backend.estimate import estimate
from backend.job.mapping import with_values
from backend.job.pipeline_layout import layers_of
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import errors
from backend.job.rules import check
from backend.planning import unequal_stages
from backend.planning.effects import effects
from backend.planning.rebalance import rebalance
from tests.estimate.cases import TP2_PP2_VPP2, TP4, job

PLANS = {
    "a tower on the first stage": job(TP2_PP2_VPP2),
    "a large vocabulary on the last": job(model__preset="qwen3-8b", parallel__pipeline=4),
    "a layout of one's own": job(
        model__preset="qwen3-8b", parallel__pipeline=8, parallel__pipeline_layout="Et*3|(t*5|)*6t*3L"
    ),
    "ends that count as layers": job(
        model__preset="qwen3-8b", parallel__pipeline=2, parallel__account_for_embedding=True,
        parallel__account_for_loss=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("the_job", PLANS.values(), ids=PLANS)
def test_the_stages_that_are_offered_are_legal_and_shorten_a_step_by_what_is_reported(the_job):
    own = estimate(the_job)
    [note] = unequal_stages(the_job, own)
    assert note.severity == "note"
    assert note.values["then"] != note.values["now"]
    assert sum(map(int, note.values["then"].split("/"))) == resolve_model(the_job.model).layers
    changed = with_values(the_job, note.edit)
    assert errors(check(changed)) == []
    result = estimate(changed)
    assert result.fits >= own.fits
    assert note.values["faster"] == f"{100 * (1 - result.iteration_s / own.iteration_s):.0f}"
    assert unequal_stages(changed, result) == []


def test_no_other_way_to_cut_two_stages_is_faster():
    the_job = job(model__preset="qwen3-8b", parallel__pipeline=2)
    best = rebalance(the_job, resolve_model(the_job.model), resolve_gpu(the_job.cluster), estimate(the_job))
    every = {
        first: estimate(with_values(the_job, {"parallel.pipeline_layout": f"E,t*{first}|t*{36 - first},L"})).iteration_s
        for first in range(1, 36)
    }
    assert layers_of(best.layout)[0] == min(every, key=every.get)


@pytest.mark.parametrize(
    "values",
    [
        TP4,
        {"engine": "llamafactory-zero3"},
        {
            "model.preset": "llama-3.1-405b",
            "cluster.nodes": 32,
            "parallel.tensor": 8,
            "parallel.pipeline": 16,
            "parallel.account_for_embedding": True,
            "parallel.account_for_loss": True,
        },
    ],
)
def test_equal_stages_and_no_stages_are_left_alone(values):
    the_job = job(values)
    assert unequal_stages(the_job, estimate(the_job)) == []


def test_the_help_of_the_layout_compares_equal_and_evened_stages():
    plan_job = PLANS["a layout of one's own"]
    own, equal, evened = effects(plan_job, "parallel.pipeline_layout")
    assert own.is_own
    assert equal.problem.code == "layers_not_divisible"
    assert evened.tokens_per_s_per_gpu > own.tokens_per_s_per_gpu
    assert effects(job(TP4), "parallel.pipeline_layout") is None
