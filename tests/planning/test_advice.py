"""The strategy table compares like with like."""

from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.mapping import with_values
from backend.job.traits import TRAITS
from backend.planning import enumerate_plans, strategies

SPLIT = {"engine": "llamafactory-megatron", "parallel.tensor": 2, "parallel.pipeline": 2}


def test_all_strategies_keep_the_global_batch_of_the_present_plan():
    job = Job(cluster=Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8), model=Model(preset="qwen3-8b"))
    job = with_values(job, {**SPLIT, "training.gradient_accumulation_steps": 8})
    assert job.global_batch == 64
    rows = strategies(job)
    assert {row.best.estimate.global_batch_size for row in rows if row.best} == {64}
    assert all(with_values(job, row.edits).global_batch == 64 for row in rows if row.best)
    assert max(rows, key=lambda row: row.fits and row.method == "full" and row.tokens_per_s_per_gpu).recommended


def test_without_a_known_speed_the_first_plan_of_the_table_is_recommended_and_not_called_the_fastest():
    job = Job(cluster=Cluster(gpu="cpu", nodes=4, gpus_per_node=1), model=Model(preset="qwen3-0.6b"))
    job = with_values(job, {"training.precision": "fp32"})
    (row,) = (row for row in strategies(job) if row.recommended)
    assert row.tokens_per_s_per_gpu is None
    assert row.reason == "fits"
    assert row.best.edits == enumerate_plans(job, list(TRAITS))[0].edits
