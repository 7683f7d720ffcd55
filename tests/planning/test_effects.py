"""Effect of another value of one parameter on a job."""

import pytest

from backend.estimate import estimate
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.problems import ProblemsError
from backend.planning.effects import Effect, effects


def job_of(**edits: object) -> Job:
    job, problems = parse_job({
        "cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8},
        "model": {"preset": "qwen3-vl-8b"},
        "parallel": {"tensor": 4},
    })  # fmt: skip
    assert job is not None, problems
    return with_values(job, {path.replace("__", "."): value for path, value in edits.items()})


def found(job: Job, path: str) -> tuple[Effect, ...]:
    tried = effects(job, path)
    assert tried
    return tried


@pytest.mark.parametrize("path", ["parallel.recompute", "parallel.tensor", "training.cutoff_len", "engine"])
def test_the_figures_are_those_of_the_job_with_that_value(path: str) -> None:
    job = job_of()
    for item in found(job, path):
        if item.problem is None:
            figures = estimate(with_values(job, item.edits))
            assert item.memory_gib == figures.reserved_gib + figures.outside_gib
            assert item.tokens_per_s_per_gpu == figures.tokens_per_s_per_gpu
            assert item.bubble_fraction == figures.bubble_fraction


def test_the_present_value_is_among_them_once_and_unchanged() -> None:
    job = job_of(parallel__recompute=None)
    own = [item for item in found(job, "parallel.recompute") if item.is_own]
    assert [item.value for item in own] == ["none"]
    figures = estimate(job)
    assert own[0].memory_gib == pytest.approx(figures.reserved_gib + figures.outside_gib)


def test_numbers_stand_by_size_and_choices_as_the_field_lists_them() -> None:
    assert [item.value for item in found(job_of(), "parallel.tensor")] == [2, 4, 8]
    assert [item.value for item in found(job_of(), "parallel.recompute")] == ["none", "selective", "full"]
    assert [item.value for item in found(job_of(), "parallel.sequence")] == [False, True]


def test_a_value_that_the_job_cannot_have_says_why() -> None:
    tried = found(job_of(parallel__pipeline=2, training__gradient_accumulation_steps=9), "parallel.virtual_pipeline")
    assert {item.value: item.problem.code for item in tried if item.problem}[2] == "too_few_micro_batches"


def test_accumulation_gives_way_to_a_wanted_batch_only_where_it_is_what_changes() -> None:
    job = job_of(training__global_batch_size=64)
    assert {item.global_batch for item in found(job, "parallel.tensor")} == {64}
    tried = found(job, "training.gradient_accumulation_steps")
    assert [item.global_batch for item in tried] == [32, 64, 128]
    assert all(item.edits["training.global_batch_size"] is None for item in tried)


@pytest.mark.parametrize(
    ("path", "answer"), [("training.seed", ()), ("parallel.moe_grouped_gemm", ()), ("model.path", None)]
)
def test_what_does_not_move_the_estimate_differs_from_what_has_no_other_value(path: str, answer: object) -> None:
    assert effects(job_of(), path) == answer


def test_a_plan_without_an_estimate_says_why() -> None:
    with pytest.raises(ProblemsError, match="ranks_not_divisible"):
        effects(job_of(parallel__tensor=3), "training.cutoff_len")


def test_other_gpus_are_tried_with_their_own_memory_and_peak() -> None:
    tried = {item.value: item for item in found(job_of(), "cluster.gpu")}
    assert tried["h100-80g"].is_own
    assert tried["a100-80g"].tokens_per_s_per_gpu < tried["h100-80g"].tokens_per_s_per_gpu
    assert not tried["rtx4090-24g"].fits
    assert tried["v100-32g"].problem.code == "no_bf16"
    own = {"memory_gib": 79.0, "bf16_tflops": 700.0, "hbm_gb_per_s": 3000.0}
    assert [item.value for item in found(job_of(cluster__gpu=own), "cluster.gpu") if item.is_own] == [own]


def test_what_is_no_parameter_is_refused() -> None:
    with pytest.raises(KeyError):
        effects(job_of(), "parallel.tensors")
