"""`why not` answers every question about sizes with a rule or a cost."""

from dataclasses import replace
from math import prod

import pytest

from app.text import LANGUAGES
from app.text.plans import why_not_words
from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.job.training import Training
from backend.planning import enumerate_plans, parse_sizes, why_not
from backend.planning.why_not import REPLICAS


def job_of(batch=64, nodes=4, gpus=8, model="qwen3-8b"):
    cluster = Cluster(gpu="h100-80g", nodes=nodes, gpus_per_node=gpus)
    return Job(cluster=cluster, model=Model(preset=model), training=Training(global_batch_size=batch))


def asked(job, sizes):
    return why_not(job, parse_sizes(sizes), enumerate_plans(job))


def codes(problems):
    return [problem.code for problem in problems.problems]


@pytest.mark.parametrize("text", ["TP=8 PP=3", "tp8pp3", "TP：8，PP＝3", "TP 8; PP 3"])
def test_sizes_are_read_as_people_write_them(text):
    assert parse_sizes(text) == {"parallel.tensor": 8, "parallel.pipeline": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TP=-1 PP=0 CP=99999999999999999999", ["too_small", "too_small", "too_large"]),
        ("TP=4.5 EP=2 EP=4", ["size_not_whole", "size_twice"]),
        ("DP=0", ["too_small"]),
        ("TP=1e3", ["why_not_unreadable"]),
        ("TP8 please", ["why_not_unreadable"]),
        ("", ["why_not_unreadable"]),
    ],
)
def test_every_size_that_cannot_be_asked_about_is_a_problem_of_its_own(text, expected):
    with pytest.raises(ProblemsError) as raised:
        parse_sizes(text)
    assert [problem.code for problem in raised.value.problems] == expected


def test_the_rule_that_refuses_it_is_reported_and_no_other_that_only_follows():
    assert codes(asked(job_of(), "TP8 PP3")) == ["ranks_not_divisible"]
    assert asked(job_of(), "TP3").problems[0].values["product"] == 3
    for sizes in ("TP8 PP3", "TP4"):
        assert codes(asked(job_of(nodes=1, gpus=2), sizes)) == ["ranks_not_divisible"]  # TP exceeds the GPUs.
    # Two chunks need two stages, which the question does not set; with them it is a plan.
    assert asked(job_of(), "VPP2").best is not None


@pytest.mark.parametrize("sizes", ["TP4", "TP2 PP2", "CP2", "TP2 CP2"])
def test_of_a_plan_that_would_train_vision_parts_wrongly_that_is_the_answer(sizes):
    result = asked(job_of(model="qwen3-vl-8b"), sizes)
    assert codes(result) == ["vision_gradients_wrong"]
    assert result.nearest is not None
    assert result.nearest.job.parallel.tensor == result.nearest.job.parallel.context == 1


@pytest.mark.parametrize("sizes", ["EP2", "ETP2"])
def test_a_dense_model_has_no_experts_to_split(sizes):
    assert codes(asked(job_of(), sizes)) == ["expert_parallel_without_experts"]


def test_a_micro_batch_that_no_copy_can_fill_is_compared_with_one_copy():
    (problem,) = asked(job_of(), "MBS512").problems
    assert (problem.code, problem.values["unit"]) == ("global_batch_not_divisible", 512)


def test_chunks_that_no_number_of_stages_allows_are_refused_for_their_own_sake():
    assert "virtual_without_pipeline" not in codes(asked(job_of(batch=7), "VPP2"))


def test_a_micro_batch_that_is_not_among_the_compared_is_put_among_them():
    result = asked(job_of(batch=96), "MBS3")
    assert result.best.job.training.micro_batch_size == 3
    assert result.best.job.global_batch == 96
    best = asked(with_values(job_of(batch=None), {"training.gradient_accumulation_steps": 3}), "MBS3").best
    assert (best.job.global_batch, best.edits["training.micro_batch_size"]) == (96, 3)
    assert result.rank is not None
    assert result.cost.slower >= 0


def test_a_micro_batch_is_not_refused_for_sizes_that_the_question_leaves_open():
    """Some of the plans with the largest TP x PP do not divide the GPUs: that does not refuse a micro-batch."""
    assert codes(asked(job_of(model="mixtral-8x7b"), "MBS7")) == ["global_batch_not_divisible"]
    # A requested DP must be filled.
    assert asked(job_of(), "DP16 MBS3").problems[0].values["unit"] == 48


def test_layers_that_cannot_be_cut_say_nothing_of_a_first_stage():
    assert codes(asked(job_of(model="qwen3-vl-8b"), "PP2 VPP5")) == ["layers_not_divisible"]


def test_copies_and_accumulation_are_asked_about_as_the_table_shows_them():
    job = job_of()
    parallel = asked(job, "TP4 DP8").best.job.parallel
    assert (parallel.tensor, parallel.pipeline, parallel.context) == (4, 1, 1)
    result = asked(job, "TP4 PP2 DP8")
    assert codes(result) == ["size_follows"]
    assert result.legal[REPLICAS] == (1, 2, 4)
    assert asked(job, "GA2").best.job.accumulation == 2


def test_what_is_refused_comes_with_what_is_legal_instead():
    job = job_of()
    result = asked(job, "TP8 PP3")
    assert result.legal == {"parallel.pipeline": (1, 2, 4)}
    assert result.nearest.job.parallel.tensor == 8
    sizes = result.nearest.job.parallel
    assert job.world_size % prod((sizes.tensor, sizes.pipeline, sizes.context)) == 0


@pytest.mark.parametrize("lang", LANGUAGES)
def test_tensor_parallel_across_nodes_is_computed_though_no_plan_of_the_table_has_it(lang):
    job = job_of()
    result = asked(job, "TP16")
    assert codes(result) == ["tensor_across_nodes"]
    assert result.rank is None
    assert result.best.job.parallel.tensor == 16
    assert result.cost.slower > 0.3
    words = why_not_words(result, enumerate_plans(job), lang)
    assert "TP16" in words
    assert "8" in words


def test_the_best_plan_across_nodes_is_the_best_of_its_kind():
    """Open sizes are chosen as in the table: with PP 1 and unsplit experts, the plan needs far too much memory."""
    job = job_of(model="mixtral-8x7b")
    for sizes in ("TP16", "ETP16"):
        result = asked(job, sizes)
        assert result.rank is None
        assert result.best.job.parallel.pipeline > 1
        assert result.best.edits["parallel.pipeline"] == result.best.job.parallel.pipeline


def test_a_layout_of_ones_own_does_not_stand_against_other_sizes():
    base = job_of(model="qwen3-vl-8b")
    layout = {"pipeline": 2, "pipeline_layout": "Et*16|t*20L"}
    job = replace(base, parallel=replace(base.parallel, **layout))
    assert codes(asked(job, "PP8")) == codes(asked(base, "PP8")) == ["layers_not_divisible"]
    assert asked(job, "PP4").best.job.parallel.pipeline_layout is None


def test_layers_that_do_not_divide_are_no_reason_where_stages_may_be_unequal():
    result = asked(job_of(), "PP8")
    assert result.problems == ()
    assert result.best.job.parallel.pipeline_layout
