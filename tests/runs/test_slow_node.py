"""A spare takes the place of a node that makes all others wait, if that saves more time than the restart costs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.text import LANGUAGES, render_problem
from backend.job.problems import Problem
from backend.runs.states import EventKind, RunState
from backend.runs.store import metrics, node_replacement
from backend.runs.store.store import Store
from backend.runs.supervise import restart, slow_node
from tests.runs.conftest import RUN, Gang, make_gang
from tools.stored_runs import TOTAL_STEPS, heartbeat, step_row

SPARE = "10.0.0.9"
START_S = 30.0
"""From the start of the attempt to its first step."""
HOT = {"utilization": 98, "clock_mhz": 1200.0, "clock_limits": 0x40}
WELL = {"utilization": 98, "clock_mhz": 1755.0, "clock_limits": 0.0}


def slow_gang(store: Store, home: Path, *, spares: str = f"{{address: {SPARE}}}", total: int = TOTAL_STEPS) -> Gang:
    """Return a gang whose steps take 8 s instead of 4 s for some minutes."""
    gang = make_gang(store, home, spares)
    # As launch.py names nodes: by the host, without SSH's default port.
    store.write(lambda c: c.execute("UPDATE nodes SET address = replace(address, ':22', '')"))
    store.write(lambda c: restart.allow(c, RUN, 1))
    gang.timing = replace(gang.timing, slow_look_s=1.0, slow_after_s=5.0)
    gang.clock.now += START_S
    rows = []
    for step in range(1, 151):
        step_s = 4.0 if step <= 120 else 8.0
        rows.append({**step_row(step, gang.clock.now, step_s), "total_steps": total})
        gang.clock.now += step_s
    store.write(lambda c: metrics.add_points(c, RUN, 1, 0, rows))
    return gang


def heat(gang: Gang, *hot: int) -> None:
    """Write a heartbeat of each node. The GPUs of some report that heat limits their clock."""
    for rank in range(len(gang.nodes)):
        row = {**heartbeat(rank, 0, gang.clock.now), "gpus": [{"index": 0, **(HOT if rank in hot else WELL)}]}
        gang.store.write(lambda c, rank=rank, row=row: metrics.add_heartbeats(c, RUN, 1, rank, [row], gang.clock.now))


def asked_to_save(gang: Gang) -> list[int]:
    return [rank for rank, node in enumerate(gang.nodes) if f"/r/node{rank}/control/stop" in node.files]


def test_the_ranks_save_and_then_a_spare_takes_the_rank_of_the_slow_node(store: Store, home: Path) -> None:
    gang = slow_gang(store, home)
    monitor = gang.monitor()
    heat(gang, 1)
    assert not gang.pass_time(monitor, 4)
    assert asked_to_save(gang) == [], "it may be slow for a moment only"
    assert not gang.pass_time(monitor, 4)
    assert (asked_to_save(gang), gang.state()) == ([0, 1, 2], RunState.RUNNING)
    for rank in range(3):
        gang.exit(rank, 0, stopped=True, reason="stopped")
    assert gang.pass_time(monitor, 10)
    assert gang.state() is RunState.QUEUED
    (replaced,) = (event for event in gang.events() if event.kind is EventKind.NODE_REPLACED)
    assert (replaced.rank, replaced.detail["node"], replaced.detail["spare"]) == (1, "10.0.0.2", SPARE)
    with store.read() as connection:
        problem = node_replacement.cordons(connection)["10.0.0.2"].problem
    assert (problem.code, problem.values["gpu"], problem.values["percent"]) == ("node_slow_gpu", "0", 100)
    assert all("{" not in "".join(render_problem(lang, problem).values()) for lang in LANGUAGES)
    assert [gang.kinds().count(kind) for kind in ("node_slow", "save_asked")] == [1, 1]


def test_a_node_with_far_more_to_do_is_replaced_too(store: Store, home: Path) -> None:
    gang = slow_gang(store, home)
    monitor = gang.monitor()
    for rank in range(3):
        row = {**heartbeat(rank, 0, gang.clock.now), "load1": 90.0 if rank == 0 else 3.0, "gpus": []}
        store.write(lambda c, rank=rank, row=row: metrics.add_heartbeats(c, RUN, 1, rank, [row], gang.clock.now))
    gang.pass_time(monitor, 8)
    (slow,) = (event for event in gang.events() if event.kind is EventKind.NODE_SLOW)
    assert (slow.rank, slow.detail["problem"]["code"]) == (0, "node_slow_load")


def test_ranks_that_do_not_save_in_time_are_ended_and_the_spare_takes_the_rank(store: Store, home: Path) -> None:
    gang = slow_gang(store, home)
    gang.timing = replace(gang.timing, save_deadline_s=20.0)
    monitor = gang.monitor()
    heat(gang, 2)
    assert gang.pass_time(monitor, 60)
    assert gang.state() is RunState.QUEUED
    kinds = gang.kinds()
    assert kinds.index("node_slow") < kinds.index("save_timed_out") < kinds.index("node_stopped")
    assert kinds.index("restarting") < kinds.index("node_replaced")


def test_a_stop_of_the_user_during_the_save_ends_the_run(store: Store, home: Path) -> None:
    gang = slow_gang(store, home)
    monitor = gang.monitor()
    heat(gang, 1)
    gang.pass_time(monitor, 8)
    assert asked_to_save(gang) == [0, 1, 2]
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert gang.pass_time(monitor, 20)
    assert gang.state() is RunState.STOPPED
    assert "node_replaced" not in gang.kinds()


def test_another_server_goes_on_with_the_replacement(store: Store, home: Path) -> None:
    gang = slow_gang(store, home)
    heat(gang, 1)
    gang.pass_time(gang.monitor(), 8)
    for node in gang.nodes:
        node.files = {path: data for path, data in node.files.items() if not path.endswith("control/stop")}
    gang.pass_time(gang.monitor(), 2)
    assert asked_to_save(gang) == [0, 1, 2]
    assert gang.kinds().count("node_slow") == 1


def one_restart_used(gang: Gang) -> None:
    gang.store.write(lambda c: restart.allow(c, RUN, 0))


def loss_broken(gang: Gang) -> None:
    gang.add_event(EventKind.LOSS_NOT_FINITE, 0)


def spare_kept_out(gang: Gang) -> None:
    gang.store.write(lambda c: node_replacement.cordon(c, SPARE, RUN, Problem(code="node_lost"), 0.0))


@pytest.mark.parametrize(
    ("values", "hot", "change"),
    [
        ({}, (1,), one_restart_used),
        ({}, (1,), loss_broken),
        ({}, (1,), spare_kept_out),
        ({"spares": ""}, (1,), None),
        ({"total": 157}, (1,), None),
        ({}, (0, 2), None),
        ({}, (), None),
    ],
    ids=["no restart", "broken", "no free spare", "no spares", "nearly done", "two nodes", "no node differs"],
)
def test_a_slow_run_goes_on_where_a_spare_would_not_help(
    store: Store, home: Path, values: dict[str, object], hot: tuple[int, ...], change: Callable[[Gang], None] | None
) -> None:
    gang = slow_gang(store, home, **values)
    if change:
        change(gang)
    monitor = gang.monitor()
    heat(gang, *hot)
    assert not gang.pass_time(monitor, 20)
    assert (gang.state(), asked_to_save(gang)) == (RunState.RUNNING, [])


def test_a_node_that_is_slow_now_and_then_is_not_replaced(store: Store, home: Path) -> None:
    gang = slow_gang(store, home)
    monitor = gang.monitor()
    for _ in range(4):
        heat(gang, 1)
        gang.pass_time(monitor, 3)
        for _ in range(2):
            heat(gang)
            gang.pass_time(monitor, 2)
        gang.clock.now += 60.0  # the look goes back one minute
    assert asked_to_save(gang) == []


def test_a_run_at_its_usual_speed_costs_no_look_at_its_nodes(
    store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look reads all nodes and the whole history: with 128 nodes more than the collectors of a second."""
    gang = slow_gang(store, home)
    store.write(lambda c: c.execute("UPDATE points SET step_s = 4.0"))
    looks: list[str] = []
    monkeypatch.setattr(slow_node, "snapshot", lambda connection, run, now: looks.append(run))
    monitor = gang.monitor()
    heat(gang, 1)
    gang.pass_time(monitor, 10)
    assert looks == []
