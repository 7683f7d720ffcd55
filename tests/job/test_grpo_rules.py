"""Rules of GRPO: what ms-swift's own argument classes and trainer would refuse, with the edit that mends it."""

from typing import Any

import pytest

from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.problems import Problem, errors
from backend.job.rules import check
from backend.job.traits import TRAITS

ABLE = ("swift-ddp", "swift-zero2", "swift-zero2-offload", "swift-zero3", "swift-zero3-offload")

BASE = {
    "cluster": {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8},
    "model": {"preset": "qwen3-4b"},
    "engine": "swift-zero3",
    "training": {"stage": "grpo", "grpo": {"rewards": "format"}},
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"training.grpo.rewards": None}, "grpo_without_reward"),
    ({"training.grpo.rewards": "format,mine"}, "grpo_reward_unknown"),
    ({"extra": {"reward_weights": [1.0, 2.0]}}, "grpo_weights_count"),
    ({"training.grpo.rewards": "soft_overlong"}, "grpo_soft_overlong"),
    ({"training.grpo.group_size": 12}, "grpo_groups_uneven"),
    ({"extra": {"generation_batch_size": 12}}, "grpo_groups_uneven"),
    ({"training.eval_steps": 10, "training.grpo.group_size": 16}, "grpo_evaluation_uneven"),
    ({"training.packing": True}, "grpo_not_packed"),
    ({"training.dataset": "a.jsonl,tokens/"}, "grpo_cached_data"),
    ({"training.grpo.rollout": "vllm", "cluster.gpu": "cpu"}, "grpo_vllm_on_cpu"),
]


def grpo(engine: str = "swift-zero3", **values: Any) -> Job:
    job, problems = parse_job({**BASE, "engine": engine})
    assert job is not None, problems
    return with_values(job, values)


def refused(job: Job) -> list[Problem]:
    return errors(check(job))


@pytest.mark.parametrize("engine", TRAITS)
def test_only_engines_that_train_it_rightly_have_it_and_the_others_name_one(engine: str) -> None:
    problems = refused(grpo(engine))
    if engine in ABLE:
        assert problems == []
        return
    codes = {"swift-megatron": "grpo_on_megatron", "swift-fsdp": "grpo_under_fsdp"}
    (problem,) = [problem for problem in problems if problem.field == "training.stage"]
    assert problem.code == codes.get(engine, "grpo_needs_swift")
    assert not [p for p in refused(grpo(str(problem.edit["engine"]))) if p.field == "training.stage"]


@pytest.mark.parametrize(("values", "code"), REFUSED)
def test_what_ms_swift_refuses_is_refused_before(values: dict[str, Any], code: str) -> None:
    assert code in [problem.code for problem in refused(grpo(**values))]


@pytest.mark.parametrize(
    "values",
    [
        {"training.grpo.rewards": "mine", "training.grpo.plugin": "/shared/rewards.py"},
        {"training.grpo.rewards": "soft_overlong", "extra": {"soft_cache_length": 64}},
        {"training.grpo.rewards": None, "extra": {"reward_model": ["/models/judge"]}},
        {"training.grpo.group_size": 16, "extra": {"steps_per_generation": 2}},
        {"training.eval_steps": 10, "training.grpo.group_size": 16, "extra": {"num_generations_eval": 8}},
        {"training.grpo.rollout": "vllm"},
    ],
)
def test_what_ms_swift_takes_is_not_refused(values: dict[str, Any]) -> None:
    assert refused(grpo(**values)) == []


@pytest.mark.parametrize(
    "values", [{"training.grpo.group_size": 12}, {"training.global_batch_size": 104, "training.grpo.group_size": 16}]
)
def test_each_edit_of_uneven_groups_makes_them_even(values: dict[str, Any]) -> None:
    job = grpo(**values)
    (problem,) = refused(job)
    assert problem.choices
    for edit in problem.choices.values():
        assert refused(with_values(job, dict(edit))) == []


def test_the_figures_say_that_they_are_assumed() -> None:
    assert [problem.severity for problem in check(grpo()) if problem.code == "grpo_assumed"] == ["note"]
    assert "grpo_assumed" not in [problem.code for problem in check(grpo(**{"training.stage": "sft"}))]
