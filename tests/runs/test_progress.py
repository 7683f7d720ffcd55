import pytest

from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.runs.records import Point
from backend.runs.view.progress import progress, step_tokens


def _job(engine: str = "llamafactory-ddp", stage: str = "sft") -> Job:
    job, _ = parse_job(
        {
            "cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8},
            "training": {"micro_batch_size": 2, "gradient_accumulation_steps": 4, "cutoff_len": 1000, "stage": stage},
            "parallel": {"tensor": 4, "pipeline": 2},
            "engine": engine,
        }
    )
    assert job is not None
    return job


def _points(*seconds: float | None) -> list[Point]:
    return [
        Point(seq=n, attempt=1, rank=0, step=n, time=0.0, total_steps=100, step_s=s)
        for n, s in enumerate(seconds, start=1)
    ]


def test_nothing_is_known_before_the_first_step() -> None:
    assert progress(_job(), []).step is None


def test_time_left_is_the_median_of_recent_steps_and_the_slow_first_one_does_not_count() -> None:
    done = progress(_job(), _points(60.0, 1.0, 9.0, 1.0))
    assert (done.step, done.total_steps, done.step_s, done.eta_s) == (4, 100, 1.0, 96.0)


def test_a_single_step_is_better_than_no_estimate() -> None:
    assert progress(_job(), _points(2.0)).eta_s == 198.0


def test_steps_without_time_give_progress_but_no_speed() -> None:
    done = progress(_job(), _points(None, None))
    assert (done.step, done.eta_s, done.tokens_per_s) == (2, None, None)


@pytest.mark.parametrize(
    ("engine", "stage", "sequences"),
    [("llamafactory-ddp", "sft", 256), ("llamafactory-megatron", "sft", 32), ("llamafactory-ddp", "dpo", 2 * 256)],
)
def test_tokens_of_the_whole_gang_follow_from_the_global_batch(engine: str, stage: str, sequences: int) -> None:
    (point,) = _points(2.0)
    job = _job(engine, stage)
    assert step_tokens(job, point) == sequences * 1000
    assert progress(job, [point]).tokens_per_s == sequences * 1000 / 2.0


def test_counted_tokens_win_over_computed_ones() -> None:
    point = Point(seq=1, attempt=1, rank=0, step=1, time=0.0, step_s=2.0, tokens=500)
    assert progress(_job(), [point]).tokens_per_s == 250.0
