"""`why not` answers every question about sizes: with a rule, with a cost, never with a shrug."""

import pytest

from app.i18n import LANGUAGES
from app.plan_words import why_not_words
from backend.job.cluster import Cluster
from backend.job.job import Job, Model, Training
from backend.planning import enumerate_plans, parse_sizes, why_not


def job_of(batch=64, nodes=4, gpus=8, model="qwen3-8b"):
    cluster = Cluster(gpu="h100-80g", nodes=nodes, gpus_per_node=gpus)
    return Job(cluster=cluster, model=Model(preset=model), training=Training(global_batch_size=batch))


def asked(job, sizes):
    return why_not(job, parse_sizes(sizes), enumerate_plans(job))


def codes(found):
    return [problem.code for problem in found.problems]


def test_the_rule_that_refuses_it_is_told_and_no_other_that_only_follows():
    assert codes(asked(job_of(), "TP8 PP3")) == ["ranks_not_divisible"]
    assert asked(job_of(), "TP3").problems[0].values["product"] == 3
    # Two chunks need two stages, which the question leaves open; with them it is a plan.
    assert asked(job_of(), "VPP2").best is not None


@pytest.mark.parametrize("sizes", ["EP2", "ETP2"])
def test_a_dense_model_has_no_experts_to_split(sizes):
    assert codes(asked(job_of(), sizes)) == ["expert_parallel_without_experts"]


def test_a_micro_batch_that_no_copy_can_fill_is_compared_with_one_copy():
    (problem,) = asked(job_of(), "MBS512").problems
    assert (problem.code, problem.values["unit"]) == ("global_batch_not_divisible", 512)


def test_chunks_that_no_number_of_stages_allows_are_refused_for_their_own_sake():
    assert "virtual_without_pipeline" not in codes(asked(job_of(batch=7), "VPP2"))


def test_a_micro_batch_that_is_not_among_the_compared_is_put_among_them():
    found = asked(job_of(batch=96), "MBS3")
    assert found.best.job.training.micro_batch_size == 3
    assert found.best.job.global_batch == 96
    assert found.rank is not None
    assert found.cost.slower >= 0


@pytest.mark.parametrize("lang", LANGUAGES)
def test_tensor_parallel_across_nodes_is_computed_though_no_plan_of_the_table_has_it(lang):
    job = job_of()
    found = asked(job, "TP16")
    assert codes(found) == ["tensor_across_nodes"]
    assert found.rank is None
    assert found.best.job.parallel.tensor == 16
    assert found.cost.slower > 0.3
    words = why_not_words(found, enumerate_plans(job), lang)
    assert "TP16 PP1 DP2" in words
    assert "8" in words
