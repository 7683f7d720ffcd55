"""A run whose steps become slower reports it, with the node that differs."""

from typing import Any

import pytest

from backend.runs.diagnosis.findings import Held, Straggler
from backend.runs.diagnosis.straggler import LEAST_BEFORE, NEWEST, compare
from backend.runs.store import metrics
from backend.runs.store.store import Store
from backend.runs.view.snapshot import snapshot
from tools.stored_runs import StoredRun, heartbeat

NOW = 1_800_000_000.0


def steps(*stretches: tuple[int, float]) -> list[tuple[int, float]]:
    """Return (step, seconds) of stretches with this number of steps and this duration. Durations vary by a tenth."""
    seconds = [s * (1 + 0.1 * (-1) ** i) for count, s in stretches for i in range(count)]
    return list(enumerate(seconds, 1))


def test_the_first_slow_step_is_found_and_what_a_step_took_before() -> None:
    result = compare(steps((200, 5.0), (37, 8.0)))
    assert result is not None
    since, step_s, usual_s = result
    assert 201 <= since <= 205
    assert (step_s, usual_s) == (pytest.approx(8.0, rel=0.11), pytest.approx(5.0, rel=0.11))


@pytest.mark.parametrize(
    "times",
    [
        steps((300, 5.0)),
        steps((200, 5.0), (NEWEST // 2 - 1, 15.0)),
        steps((200, 5.0), (1, 90.0), (15, 5.0), (1, 90.0), (3, 5.0)),
        steps((200, 5.0), (50, 5.75)),
        steps((200, 8.0), (50, 5.0)),
        steps((1, 60.0), (LEAST_BEFORE - 1, 5.0), (NEWEST, 45.0)),
        steps((900, 0.05), (90, 0.1)),
        [],
    ],
    ids=["steady", "a few", "saves", "longer samples", "faster", "too early", "nine seconds", "none"],
)
def test_what_is_no_straggler(times: list[tuple[int, float]]) -> None:
    assert compare(times) is None


def slow_run(store: Store, nodes: int = 3) -> StoredRun:
    run = StoredRun(store, "r", now=NOW, nodes=nodes)
    run.start()
    run.steps(1, 120, step_s=4)
    run.steps(121, 149, step_s=8)
    run.steps(150, 150, step_s=8)
    return run


def seen(store: Store, run: StoredRun, now: float | None = None) -> Straggler | None:
    with store.read() as connection:
        return snapshot(connection, run.id, run.now if now is None else now).slowdown


def beat(store: Store, run: StoredRun, rank: int, *gpus: dict[str, Any], **host: float) -> None:
    row = {**heartbeat(rank, 0, run.now), "load1": 4.0, **host, "gpus": [{"index": i, **g} for i, g in enumerate(gpus)]}
    store.write(lambda c: metrics.add_heartbeats(c, run.id, 1, rank, [row], run.now))
    run.now += 2


WELL = {"utilization": 98, "clock_mhz": 1755.0, "clock_limits": 4.0}


def test_a_gpu_that_says_that_heat_holds_it_down_is_named_also_among_others_at_their_power_limit(store: Store) -> None:
    run = slow_run(store)
    for _ in range(3):
        for rank in range(3):
            hot = {**WELL, "clock_mhz": 1200.0, "clock_limits": 0x4C} if rank == 1 else WELL
            beat(store, run, rank, WELL, hot)
    result = seen(store, run)
    assert result is not None
    assert result.held == (Held(node=1, gpu=1, limit="thermal", clock_mhz=1200, usual_mhz=1755),)
    assert (result.loaded, result.utilization) == ((), 98)


def test_one_heartbeat_of_many_names_nobody(store: Store) -> None:
    run = slow_run(store)
    for number in range(5):
        beat(store, run, 0, {**WELL, "clock_limits": 0x40 if number == 2 else 0.0})
    result = seen(store, run)
    assert result is not None
    assert result.held == ()


def test_a_clock_far_below_the_others_is_named_where_no_gpu_says_why(store: Store) -> None:
    run = slow_run(store)
    for rank in range(3):
        beat(store, run, rank, {**WELL, "clock_mhz": 1300.0 if rank == 2 else 1755.0})
    result = seen(store, run)
    assert result is not None
    assert result.held == (Held(node=2, gpu=0, clock_mhz=1300, usual_mhz=1755),)


def test_a_node_with_far_more_to_do_than_the_others_is_named(store: Store) -> None:
    run = slow_run(store)
    for rank in range(3):
        beat(store, run, rank, load1=90.0 if rank == 0 else 5.0)
    result = seen(store, run)
    assert result is not None
    assert [(item.node, item.load, item.usual) for item in result.loaded] == [(0, 90, 5)]
    assert result.utilization is None


def test_gpus_that_older_supervisors_tell_less_of_are_no_trouble(store: Store) -> None:
    run = slow_run(store)
    beat(store, run, 0, {"utilization": None, "memory_used_mib": 1.0})
    result = seen(store, run)
    assert result is not None
    assert (result.held, result.utilization) == ((), None)


def test_a_run_that_stands_still_is_not_slow(store: Store) -> None:
    run = slow_run(store)
    assert seen(store, run) is not None
    assert seen(store, run, run.now + 600) is None
