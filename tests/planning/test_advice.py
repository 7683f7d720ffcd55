"""The strategy table compares like with like."""

from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.mapping import with_values
from backend.planning import strategies

SPLIT = {"engine": "llamafactory-megatron", "parallel.tensor": 2, "parallel.pipeline": 2}


def test_all_strategies_keep_the_global_batch_of_the_present_plan():
    job = Job(cluster=Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8), model=Model(preset="qwen3-8b"))
    job = with_values(job, {**SPLIT, "training.gradient_accumulation_steps": 8})
    assert job.global_batch == 64
    rows = strategies(job)
    assert {row.best.estimate.global_batch_size for row in rows if row.best} == {64}
    assert all(with_values(job, row.edits).global_batch == 64 for row in rows if row.best)
    assert max(rows, key=lambda row: row.fits and row.method == "full" and row.tokens_per_s_per_gpu).recommended
