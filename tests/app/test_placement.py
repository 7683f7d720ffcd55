"""The groups and the node of each rank."""

from app.wizard.placement import SHOWN_NODES, placement
from backend.job.job import Job
from backend.job.mapping import parse_job


def job_with(**parallel: int) -> Job:
    mapping = {"cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8}, "model": {"preset": "qwen3-30b-a3b"},
               "parallel": parallel}  # fmt: skip
    job, _ = parse_job(mapping)
    assert job is not None
    return job


def test_tensor_groups_are_neighbours_and_stages_are_furthest_apart() -> None:
    ranks = placement(job_with(tensor=4, pipeline=2))
    assert ranks["groups"]["tensor"][:9] == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert ranks["groups"]["pipeline"][0] == ranks["groups"]["pipeline"][16]
    assert ranks["groups"]["data"][0] == ranks["groups"]["data"][4] != ranks["groups"]["data"][1]
    assert ranks["spans"]["tensor"] == {"groups": 8, "ranks": 4, "nodes": 1}
    assert ranks["spans"]["pipeline"] == {"groups": 16, "ranks": 2, "nodes": 2}


def test_expert_groups_have_their_own_order() -> None:
    ranks = placement(job_with(tensor=4, expert=8))
    assert ranks["groups"]["expert"][:9] == [0] * 8 + [1]


def test_a_large_cluster_is_not_drawn_whole() -> None:
    mapping = {"cluster": {"gpu": "h100-80g", "nodes": 100, "gpus_per_node": 8}, "model": {"preset": "qwen3-8b"}}
    job, _ = parse_job(mapping)
    assert job is not None
    ranks = placement(job)
    assert (len(ranks["nodes"]), ranks["left_out"]) == (SHOWN_NODES, 100 - SHOWN_NODES)
    assert len(ranks["groups"]["data"]) == 8 * SHOWN_NODES
