"""The guides' plans stand beside our figures in the case that the guides are about."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.training import Training
from backend.planning import guides

CASE = Job(cluster=Cluster(gpu="a100-80g", nodes=4, gpus_per_node=8), model=Model(preset="qwen3-vl-8b"))


def test_a_guides_speed_up_is_against_one_node_with_the_same_plan_and_global_batch():
    found = guides(CASE)
    assert [one.claim.name for one in found] == ["TP4 PP1", "TP8 PP1", "TP2 PP2 VPP2"]
    for one in found:
        alone = replace(
            one.job,
            cluster=replace(one.job.cluster, nodes=1),
            training=replace(one.job.training, gradient_accumulation_steps=4 * one.job.accumulation),
        )
        assert alone.global_batch == one.job.global_batch == 64
        expected = 4 * estimate(one.job).tokens_per_s_per_gpu / estimate(alone).tokens_per_s_per_gpu
        assert one.speed_up == pytest.approx(expected)


def test_a_guides_plan_that_the_wanted_batch_rules_out_has_no_speed_up():
    """Four nodes have no such plan, one node has: half a group of micro-batches cannot be estimated."""
    job = replace(CASE, training=replace(CASE.training, global_batch_size=1))
    assert guides(job)[-1].speed_up is None


@pytest.mark.parametrize(
    "other",
    [
        {"cluster": replace(CASE.cluster, nodes=2)},
        {"model": Model(preset="qwen3-8b")},
        {"training": Training(method="lora")},
    ],
    ids=["nodes", "model", "method"],
)
def test_another_case_has_no_guides(other):
    assert guides(replace(CASE, **other)) == ()


def test_a_guide_knows_no_layout_and_counts_nothing_as_a_layer():
    own = {"pipeline": 2, "pipeline_layout": "Et*16|t*20L", "account_for_loss": True}
    found = guides(replace(CASE, parallel=replace(CASE.parallel, **own)))
    assert [one.job for one in found] == [one.job for one in guides(CASE)]
