"""A run's measured steps and memory correct the estimates of its cluster, or the reason why not is given."""

import dataclasses
import math
import statistics

import pytest

from backend.estimate import estimate
from backend.estimate.time.calibrated import training_of
from backend.job.cluster import Calibration
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.presets import efficiency_figures
from backend.job.problems import ProblemsError
from backend.runs.records import Point
from backend.runs.tasks.calibration import RunMeasured, calibration_of, measure_run

RUN = "20261121-101500-job-0a1b"


def job_of(**values: object) -> Job:
    """Return a packed text job on Megatron, with 2 nodes of 8 H100."""
    job, problems = parse_job(
        {
            "cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8},
            "model": {"preset": "qwen3-8b"},
            "training": {"packing": True, "save_steps": 20},
            "parallel": {"tensor": 4},
        }
    )
    assert job is not None, problems
    return with_values(job, {name.replace("__", "."): value for name, value in values.items()})


def points(count: int = 30, *, step_s: float = 2.0, first: int = 1, **more: object) -> list[Point]:
    """Return steps of rank 0. The first three are slow, and so are those that save."""
    return [
        Point(
            seq=step,
            attempt=1,
            rank=0,
            step=step,
            time=float(step),
            step_s=30.0 if step < first + 3 or step % 20 in (0, 1) else step_s,
            **more,  # type: ignore[arg-type]
        )
        for step in range(first, first + count)
    ]


def measured(job: Job, *, step_s: float = 2.0, reserved: tuple[float, ...] = (), **more: object) -> RunMeasured:
    ranks = enumerate(reserved)
    newest = [Point(seq=1, attempt=1, rank=rank, step=30, time=0, reserved_gib=gib) for rank, gib in ranks]
    return measure_run(job, RUN, points(step_s=step_s, **more), newest)


def codes(problems: RunMeasured) -> list[str]:
    return [problem.code for problem in problems.problems]


def test_the_ratio_is_the_median_step_over_the_estimated_one():
    job = job_of()
    seconds = estimate(with_values(job, {"cluster.stack": "tuned"})).iteration_s
    assert seconds is not None
    result = measured(job, step_s=1.1 * seconds)
    assert (result.steps, result.step_s, result.predicted_step_s) == (
        25,
        pytest.approx(1.1 * seconds),
        estimate(job).iteration_s,
    )
    assert result.time_ratio == pytest.approx(1.1)


def test_a_ratio_within_the_models_scatter_is_said_to_be_of_little_use():
    job = job_of()
    seconds = estimate(with_values(job, {"cluster.stack": "tuned"})).iteration_s
    assert seconds is not None
    assert codes(measured(job, step_s=1.03 * seconds)) == ["calibrate_within_error", "calibrate_no_memory"]


def test_the_memory_ratio_is_the_highest_reserve_of_a_rank_over_the_estimated_allocation():
    job = job_of()
    peak = estimate(job).peak_gib
    result = measured(job, reserved=(0.9 * peak, 1.04 * peak, 1.0 * peak))
    assert result.memory_ratio == pytest.approx(1.04)
    assert result.reserved_gib == pytest.approx(1.04 * peak)
    assert codes(result) == []


def test_a_second_calibration_is_measured_against_the_uncorrected_estimate():
    bare = job_of()
    seconds = estimate(with_values(bare, {"cluster.stack": "tuned"})).iteration_s
    assert seconds is not None
    job = job_of(cluster__calibration=Calibration(gpu="h100-80g", run="old", time_ratio=1.3))
    result = measured(job, step_s=1.1 * seconds)
    assert result.predicted_step_s == pytest.approx(1.3 * seconds)
    assert result.time_ratio == pytest.approx(1.1)


def test_the_probes_speeds_stay_in_the_estimate_that_is_compared():
    benchmarked = job_of(cluster__calibration=Calibration(gpu="h100-80g", probe_date="2026-11-20", matmul_tflops=400.0))
    seconds = estimate(with_values(benchmarked, {"cluster.stack": "tuned"})).iteration_s
    assert seconds is not None
    result = measured(benchmarked, step_s=seconds)
    assert result.time_ratio == pytest.approx(1.0)
    calibration = calibration_of(benchmarked, result, "2026-11-21")
    assert (calibration.matmul_tflops, calibration.probe_date, calibration.run) == (400.0, "2026-11-20", RUN)


def test_shorter_samples_are_compared_with_the_estimate_of_their_length():
    job = job_of(training__packing=False)
    half = with_values(job, {"training.cutoff_len": 2048})
    seconds = estimate(with_values(half, {"cluster.stack": "tuned"})).iteration_s
    assert seconds is not None
    result = measured(job, step_s=seconds, tokens=job.global_batch * 2048, reserved=(40.0,))
    assert result.time_ratio == pytest.approx(1.0)
    assert result.memory_ratio is None
    assert "calibrate_short_samples" in codes(result)


def test_samples_that_reach_the_full_length_tell_of_memory():
    job = job_of(training__packing=False)
    result = measured(job, tokens=job.global_batch * 4096, reserved=(40.0,))
    assert result.memory_ratio is not None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"training__packing": False}, ["calibrate_tokens_unknown", "calibrate_no_memory"]),
        ({"model__preset": "qwen3-vl-8b"}, ["calibrate_images_assumed", "calibrate_no_memory"]),
        ({"cluster__gpu": "cpu", "training__precision": "fp32"}, ["calibrate_no_speed", "calibrate_no_memory"]),
    ],
    ids=["unpacked", "images", "cpu"],
)
def test_what_cannot_be_known_is_refused_or_reported(values: dict[str, object], expected: list[str]):
    assert codes(measured(job_of(**values), step_s=3.0)) == expected


def test_a_step_that_is_far_from_any_estimate_corrects_nothing():
    result = measured(job_of(), step_s=5000.0)
    assert (result.time_ratio, "calibrate_far_off" in codes(result)) == (None, True)


@pytest.mark.parametrize("count", [0, 1, 12])
def test_too_few_steps_say_how_many_are_needed(count: int):
    result = measure_run(job_of(), RUN, points(count), [])
    assert codes(result) == ["calibrate_few_steps"]
    assert result.problems[0].values["needed"] == 10
    with pytest.raises(ProblemsError):
        calibration_of(job_of(), result, "2026-11-21")


def test_a_resumed_attempts_own_first_steps_do_not_count():
    job = job_of()
    result = measure_run(job, RUN, points(30, first=104), [])
    assert result.step_s == 2.0


def test_a_calibration_names_its_run_gpu_and_engine():
    job = job_of(cluster__calibration=Calibration(gpu="a100-80g", matmul_tflops=250.0, memory_ratio=1.2))
    result = dataclasses.replace(measured(job_of()), time_ratio=1.23456, memory_ratio=None)
    assert calibration_of(job, result, "2026-11-21") == Calibration(
        gpu="h100-80g",
        run=RUN,
        run_date="2026-11-21",
        engine="llamafactory-megatron",
        training="8190735360 full 4096",
        time_ratio=1.235,
        constants=efficiency_figures().version,
    )


def of_the_same_training(**values: object) -> Calibration:
    known = {"gpu": "h100-80g", "run": "old", "engine": "llamafactory-megatron", "training": training_of(job_of())}
    return Calibration(**known, **values)  # type: ignore[arg-type]


def test_a_run_of_another_training_begins_the_mean_anew():
    known = of_the_same_training(time_ratio=1.2, time_runs=5, memory_ratio=1.1, memory_runs=5)
    job = job_of(cluster__calibration=known, training__cutoff_len=8192)
    anew = calibration_of(job, dataclasses.replace(measured(job), time_ratio=1.25, memory_ratio=1.2), "2026-11-21")
    assert (anew.time_ratio, anew.time_runs, anew.memory_ratio, anew.memory_runs) == (1.25, None, 1.2, None)
    assert anew.training == training_of(job)


def test_a_further_run_joins_the_mean_and_one_that_is_measured_again_adds_no_run():
    job = job_of(cluster__calibration=of_the_same_training(time_ratio=1.2))
    seconds = estimate(with_values(job_of(), {"cluster.stack": "tuned"})).iteration_s
    assert seconds is not None
    joined = calibration_of(job, measured(job, step_s=1.25 * seconds), "2026-11-21")
    assert (joined.time_runs, joined.time_ratio) == (2, pytest.approx((1.2 * 1.25) ** 0.5, rel=1e-3))
    assert joined.time_spread == pytest.approx(statistics.stdev(map(math.log, (1.2, 1.25))), rel=2e-3)
    third = calibration_of(
        with_values(job, {"cluster.calibration": joined}),
        dataclasses.replace(measured(job), run="third", time_ratio=1.1),
        "2026-11-22",
    )
    assert third.time_spread == pytest.approx(statistics.stdev(map(math.log, (1.2, 1.25, 1.1))), rel=2e-3)
    again = with_values(job, {"cluster.calibration": joined})
    assert calibration_of(again, measured(again, step_s=1.25 * seconds), "2026-11-21").time_runs == 2


def test_a_run_far_from_the_earlier_ones_begins_the_mean_anew():
    job = job_of(cluster__calibration=of_the_same_training(time_ratio=1.2, time_runs=5))
    seconds = estimate(with_values(job_of(), {"cluster.stack": "tuned"})).iteration_s
    assert seconds is not None
    anew = calibration_of(job, measured(job, step_s=2.4 * seconds), "2026-11-21")
    assert (anew.time_runs, anew.time_ratio) == (None, pytest.approx(2.4, rel=1e-3))
