"""The plans of a job: all that are legal, none that is not, at one global batch, best first."""

import itertools

import pytest

from backend.job.mapping import with_values
from backend.job.problems import errors
from backend.job.rules import check
from backend.planning import candidates, enumerate_plans
from tests.estimate.cases import TP4, job

MODELS = ["qwen3-vl-8b", "llama-3.1-70b", "mixtral-8x7b"]


@pytest.mark.parametrize("preset", MODELS)
def test_every_plan_is_legal_and_keeps_the_global_batch(preset):
    base = job(TP4, model__preset=preset)
    found = candidates(base)
    assert found
    for candidate in found:
        chosen = with_values(base, candidate.edits)
        assert errors(check(chosen)) == []
        assert candidate.estimate.global_batch_size == base.global_batch == chosen.global_batch
        assert candidate.estimate.data_parallel == chosen.data_parallel


def test_no_legal_plan_of_a_small_grid_is_missing():
    base = job(TP4, cluster__nodes=1, model__preset="llama-3.1-8b", training__global_batch_size=64)
    legal = set()
    for tensor, pipeline, virtual in itertools.product(range(1, 9), range(1, 9), range(1, 33)):
        tried = {"tensor": tensor, "pipeline": pipeline, "virtual_pipeline": virtual}
        chosen = with_values(base, {f"parallel.{name}": size for name, size in tried.items()})
        if chosen.data_parallel and chosen.global_batch == 64 and not errors(check(chosen)):
            legal.add((tensor, pipeline, virtual))
    assert {(item.tensor, item.pipeline, item.virtual_pipeline) for item in candidates(base)} == legal


def test_the_seeds_three_plans_are_among_them():
    found = {(item.tensor, item.pipeline, item.virtual_pipeline) for item in candidates(job(TP4))}
    assert {(4, 1, 1), (8, 1, 1), (2, 2, 2)} <= found


def test_plans_that_fit_come_first_then_by_bubble_then_by_memory():
    found = [item.estimate for item in candidates(job(TP4, model__preset="llama-3.1-70b"))]
    assert not all(item.fits for item in found)
    keys = [(not item.fits, round(item.bubble_fraction, 6), item.peak_gib) for item in found]
    assert keys == sorted(keys)


def test_the_wanted_global_batch_decides_the_accumulation():
    base = job(TP4, training__global_batch_size=128)
    found = candidates(base)
    assert {item.estimate.global_batch_size for item in found} == {128}
    assert all("training.gradient_accumulation_steps" not in item.edits for item in found)


def test_a_global_batch_that_replicas_cannot_share_is_counted_as_a_refusal():
    plans = enumerate_plans(job(TP4, training__global_batch_size=12))
    assert plans.rejected["global_batch_not_divisible"] > 0
    assert all(12 % item.estimate.data_parallel == 0 for item in plans.candidates)


def test_experts_are_spread_in_every_way_that_divides():
    found = candidates(job(model__preset="qwen3-30b-a3b"))
    assert {item.expert for item in found} == {1, 2, 4, 8, 16, 32}
    assert all(32 % (item.expert * item.expert_tensor * item.pipeline) == 0 for item in found)


@pytest.mark.parametrize(
    "engine", ["llamafactory-ddp", "llamafactory-zero2", "llamafactory-zero3", "llamafactory-fsdp"]
)
def test_a_hugging_face_engine_has_one_plan(engine):
    [only] = candidates(job(engine=engine))
    assert only.estimate.data_parallel == 32
