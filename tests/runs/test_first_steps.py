"""The first steps of a run are compared with the intervals of its estimate: one event for time, one for memory."""

from typing import Any

import pytest

from backend.estimate import Estimate, estimate
from backend.job.job import Job
from backend.job.mapping import dump_job, parse_job, with_values
from backend.runs.diagnosis import first_steps
from backend.runs.diagnosis.first_steps import STEPS, outside_interval
from backend.runs.records import Event
from backend.runs.states import EventKind
from backend.runs.store import metrics
from tests.runs.conftest import RUN, Gang


def launched(gang: Gang, **values: object) -> tuple[Job, Estimate]:
    """Let the gang run this packed job on three H100, and return the job with its estimate."""
    job, problems = parse_job(
        {
            "cluster": {"gpu": "h100-80g", "nodes": 3, "gpus_per_node": 1},
            "model": {"preset": "qwen3-8b"},
            "training": {"packing": True, "save_steps": 500, "method": "lora"},
            "engine": "llamafactory-ddp",
        }
    )
    assert job is not None, problems
    job = with_values(job, {name.replace("__", "."): value for name, value in values.items()})
    gang.store.write(lambda c: c.execute("UPDATE runs SET job = ? WHERE id = ?", (dump_job(job), RUN)))
    return job, estimate(job)


def steps(gang: Gang, *, first: int = 1, count: int = STEPS, rank: int = 0, **values: object) -> None:
    """Write steps of a node's rank, and read them in two batches."""
    rows: list[dict[str, Any]] = [{"step": first + i, "time": 1000.0 + i, **values} for i in range(count)]
    for batch in (rows[: count // 2], rows[count // 2 :]):
        gang.write(rank, f"steps.rank{rank}.jsonl", *batch)
        gang.collector(rank).poll(gang.nodes[rank])


def told(gang: Gang) -> list[Event]:
    return [event for event in gang.events() if event.kind is EventKind.OUTSIDE_INTERVAL]


def codes(gang: Gang) -> list[tuple[str, str, str]]:
    return [(event.detail["figure"], event.detail["side"], event.detail["problem"]["code"]) for event in told(gang)]


def beats(gang: Gang, **gpu: object) -> None:
    for rank in range(3):
        gang.write(rank, "heartbeat.jsonl", {"time": 1010.0, "members": [], "gpus": [{"index": 0, **gpu}]})
        gang.clock.now = 1010.0
        gang.collector(rank).poll(gang.nodes[rank])


def test_an_assumed_memory_has_no_interval_to_be_outside_of(gang: Gang) -> None:
    grpo = {"training__stage": "grpo", "training__grpo__rewards": "format", "training__packing": False}
    _, planned = launched(gang, engine="swift-ddp", **grpo)
    steps(gang, step_s=1.0, reserved_gib=2 * planned.reserved_gib)
    assert told(gang) == []


def test_steps_inside_the_interval_say_nothing(gang: Gang) -> None:
    _, planned = launched(gang)
    assert planned.iteration_s is not None
    steps(gang, step_s=planned.iteration_s, reserved_gib=planned.reserved_gib)
    assert codes(gang) == []


def test_slow_steps_are_reported_once_with_what_was_planned(gang: Gang) -> None:
    _, planned = launched(gang)
    assert planned.iteration_s is not None
    steps(gang, step_s=2 * planned.iteration_s, count=STEPS - 1)
    assert told(gang) == []
    steps(gang, first=STEPS, step_s=2 * planned.iteration_s)
    (event,) = told(gang)
    assert event.detail["step"] == STEPS
    assert event.detail["measured"] == pytest.approx(2 * planned.iteration_s)
    assert (event.detail["low"], event.detail["high"]) == (planned.iteration_s_low, planned.iteration_s_high)
    assert codes(gang) == [("time", "high", "steps_slow_software")]


def test_all_ranks_are_compared_with_one_estimate(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate takes milliseconds, and 1024 ranks make their 20th step at the same time."""
    _, planned = launched(gang, training__learning_rate=1.25e-5)
    estimated: list[Job] = []
    monkeypatch.setattr(first_steps, "estimate", lambda job: estimated.append(job) or estimate(job))
    for rank in range(3):
        steps(gang, rank=rank, reserved_gib=planned.reserved_gib)
    assert len(estimated) == 1


def test_a_rank_is_judged_without_reading_the_other_events_of_the_run(gang: Gang) -> None:
    """With 1024 ranks, each would read thousands of events at its 20th step."""
    _, planned = launched(gang)
    rows = [{"step": step, "time": 1000.0, "reserved_gib": planned.reserved_gib} for step in range(1, STEPS + 1)]
    gang.store.write(lambda c: metrics.add_points(c, RUN, 1, 2, rows))
    statements: list[str] = []
    with gang.store.read() as connection:
        connection.set_trace_callback(statements.append)
        assert list(outside_interval(connection, RUN, 1, 2, rows, 1)) == []
        connection.set_trace_callback(None)
    of_events = [statement for statement in statements if "FROM events" in statement]
    assert of_events
    assert all("kind =" in statement for statement in of_events)


def test_fast_steps_are_reported_too(gang: Gang) -> None:
    _, planned = launched(gang)
    assert planned.iteration_s_low is not None
    steps(gang, step_s=0.95 * planned.iteration_s_low)
    assert codes(gang) == [("time", "low", "steps_faster")]


def test_samples_of_another_length_than_planned_are_the_cause_if_they_explain_the_time(gang: Gang) -> None:
    job, _ = launched(gang, training__packing=False)
    half = estimate(with_values(job, {"training.cutoff_len": job.training.cutoff_len // 2})).iteration_s
    steps(gang, step_s=half, tokens=job.global_batch * job.training.cutoff_len // 2)
    assert codes(gang) == [("time", "low", "steps_other_lengths")]
    values = told(gang)[0].detail["problem"]["values"]
    assert values == {"mean": f"{job.training.cutoff_len // 2:,}", "planned": f"{job.training.cutoff_len:,}"}


@pytest.mark.parametrize(
    ("gpu", "code"),
    [
        ({"clock_mhz": 900.0, "clock_limits": 0x40, "utilization": 99.0}, "steps_slow_clocks"),
        ({"clock_mhz": 1900.0, "clock_limits": 0, "utilization": 30.0}, "steps_wait"),
        ({"clock_mhz": 1900.0, "clock_limits": 0, "utilization": 99.0}, "steps_slow_software"),
    ],
    ids=["heat", "idle", "busy"],
)
def test_what_the_gpus_report_names_the_cause_of_slow_steps(gang: Gang, gpu: dict[str, object], code: str) -> None:
    _, planned = launched(gang)
    assert planned.iteration_s is not None
    beats(gang, **gpu)
    steps(gang, step_s=2 * planned.iteration_s)
    assert codes(gang) == [("time", "high", code)]


@pytest.mark.parametrize(
    ("engine", "preset", "values"),
    [
        ("llamafactory-zero3", "qwen3-8b", {"case": "liger"}),
        ("llamafactory-zero3", "qwen3-vl-8b", {}),
        ("swift-zero3", "qwen3-vl-8b", {"case": "liger"}),
        ("swift-megatron", "qwen3-8b", {}),
    ],
)
def test_liger_is_proposed_for_slow_steps_where_the_engine_has_it_for_the_model(
    gang: Gang, engine: str, preset: str, values: object
) -> None:
    _, planned = launched(gang, engine=engine, model__preset=preset)
    assert planned.iteration_s is not None
    steps(gang, step_s=2 * planned.iteration_s)
    (problem,) = [event.detail["problem"] for event in told(gang) if event.detail["figure"] == "time"]
    assert (problem["code"], problem.get("values", {})) == ("steps_slow_software", values)


def test_a_network_that_nobody_measured_is_the_cause_where_a_step_is_mostly_communication(gang: Gang) -> None:
    _, planned = launched(
        gang, cluster__inter_node_gbit_per_s=1.0, cluster__nics_per_node=1, training__method="full",
        engine="llamafactory-zero3",
    )  # fmt: skip
    assert planned.iteration_s is not None
    steps(gang, step_s=2 * planned.iteration_s)
    assert codes(gang) == [("time", "high", "steps_slow_network")]


def test_the_rank_with_more_memory_than_the_interval_is_reported_once(gang: Gang) -> None:
    _, planned = launched(gang)
    for rank in (2, 1, 0):
        steps(gang, rank=rank, reserved_gib=1.5 * planned.reserved_gib)
    (event,) = told(gang)
    assert (event.rank, event.detail["figure"], event.detail["side"]) == (2, "memory", "high")
    assert event.detail["problem"]["code"] == "memory_software"


def test_an_allocator_without_expandable_segments_is_the_cause_of_more_memory(gang: Gang) -> None:
    _, planned = launched(gang, environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"})
    steps(gang, reserved_gib=1.5 * planned.reserved_gib)
    assert codes(gang) == [("memory", "high", "memory_segments")]


@pytest.mark.parametrize(("packing", "expected"), [(True, [("memory", "low", "memory_lower")]), (False, [])])
def test_less_memory_is_reported_only_if_samples_are_full(gang: Gang, packing: bool, expected: list[object]) -> None:
    job, planned = launched(gang, training__packing=packing)
    half = {} if packing else {"tokens": job.global_batch * job.training.cutoff_len // 2}
    same = with_values(job, {"training.cutoff_len": job.training.cutoff_len // (1 if packing else 2)})
    for rank in (2, 1, 0):
        steps(gang, rank=rank, step_s=estimate(same).iteration_s, reserved_gib=0.5 * planned.reserved_gib, **half)
    assert [code for code in codes(gang) if code[0] == "memory"] == expected


def test_a_run_without_an_estimate_is_not_judged(gang: Gang) -> None:
    steps(gang, step_s=5.0, reserved_gib=3.0)
    assert told(gang) == []
