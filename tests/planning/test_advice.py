"""The strategy table compares strategies under equal conditions."""

import pytest

from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.mapping import parse_job, with_values
from backend.job.presets import recipes
from backend.job.problems import errors
from backend.job.rules import check
from backend.job.traits import TRAITS
from backend.planning import enumerate_plans, recommended, strategies

SPLIT = {"engine": "llamafactory-megatron", "parallel.tensor": 2, "parallel.pipeline": 2}


def test_all_strategies_keep_the_global_batch_of_the_present_plan():
    job = Job(cluster=Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8), model=Model(preset="qwen3-8b"))
    job = with_values(job, {**SPLIT, "training.gradient_accumulation_steps": 8})
    assert job.global_batch == 64
    rows = strategies(job)
    assert {row.best.estimate.global_batch_size for row in rows if row.best} == {64}
    assert all(with_values(job, row.edits).global_batch == 64 for row in rows if row.best)
    assert max(rows, key=lambda row: row.fits and row.method == "full" and row.tokens_per_s_per_gpu).recommended


def test_without_a_known_speed_the_recommended_plan_of_the_table_is_not_called_the_fastest():
    job = Job(cluster=Cluster(gpu="cpu", nodes=4, gpus_per_node=1), model=Model(preset="qwen3-0.6b"))
    job = with_values(job, {"training.precision": "fp32"})
    (row,) = (row for row in strategies(job) if row.recommended)
    assert row.tokens_per_s_per_gpu is None
    assert row.reason == "fits"
    plans = enumerate_plans(job, list(TRAITS))
    assert row.best.edits == plans[recommended(plans)].edits


def _recipe(key: str, **edits: object) -> Job:
    job, _ = parse_job(recipes()[key]["job"])
    assert job is not None
    return with_values(job, {path.replace("__", "."): value for path, value in edits.items()})


LARGE = "qwen2.5-72b-megatron"
"""TP 8, PP 4 on 32 GPUs at a global batch of 16: plain data parallelism has 32 replicas, which cannot share it."""


def test_strategies_are_compared_at_the_smallest_global_batch_from_the_job_s_on_that_all_can_do():
    job = _recipe(LARGE)
    assert (job.global_batch, job.world_size) == (16, 32)
    rows = strategies(job)
    assert {row.global_batch for row in rows} == {32}
    assert all(row.best is not None for row in rows)
    assert {row.best.estimate.global_batch_size for row in rows if row.best} == {32}
    assert sum(row.recommended for row in rows) == 1


@pytest.mark.parametrize(("expected", "compared"), [(8, 32), (32, 32), (40, 64), (96, 96)])
def test_choosing_a_strategy_makes_the_global_batch_that_it_was_compared_at(expected, compared):
    job = _recipe(LARGE, training__global_batch_size=expected)
    for row in strategies(job):
        assert row.global_batch == compared
        chosen = with_values(job, row.edits)
        assert chosen.global_batch == compared
        assert errors(check(chosen)) == []


def test_where_only_megatron_can_train_the_job_its_own_global_batch_stays_and_the_others_say_why():
    job = _recipe(LARGE, cluster__gpu="cpu")
    rows = {row.key: row for row in strategies(job)}
    assert {key for key, row in rows.items() if row.best} == {"megatron"}, "else this shows nothing"
    assert {row.global_batch for row in rows.values()} == {16}
    assert all(row.problem is not None for key, row in rows.items() if key != "megatron")


def test_comparing_at_another_global_batch_leaves_the_plans_of_the_job_s_own_at_hand():
    job = _recipe(LARGE)
    before = enumerate_plans(job)
    strategies(job)
    assert enumerate_plans(job).unordered is before.unordered
