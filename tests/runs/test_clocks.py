"""Clocks of nodes that are wrong, or that somebody sets during a run. Displayed times are correct by the server's
clock."""

from dataclasses import replace

import pytest

from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts
from tests.runs.conftest import RUN, Gang

OFF_S = (-600.0, 600.0)


def _offset(gang: Gang, rank: int = 0) -> float:
    with gang.store.read() as connection:
        return attempts.nodes(connection, RUN, 1)[rank].clock_offset_s


class Node:
    """Node 0 by its own clock. It writes a step and a heartbeat every two seconds."""

    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self.ahead_s = 0.0
        self.step = 0
        self.collector = gang.collector()

    def work(self, seconds: int, *, steps: bool = True) -> None:
        for _ in range(seconds // 2):
            self.gang.clock.now += 2.0
            now = self.gang.clock.now + self.ahead_s
            if steps:
                self.step += 1
                row = {"step": self.step, "total_steps": 10_000, "time": now, "step_s": 2.0}
                self.gang.write(0, "steps.rank0.jsonl", row)
            beat = {"time": now, "members": [[1, 2]], "gpus": [], "wrote": now, "worked": [[0, now]]}
            self.gang.write(0, "heartbeat.jsonl", beat)
            self.gang.clock.now += 0.5
            self.collector.poll(self.gang.nodes[0])


@pytest.fixture
def node(gang: Gang) -> Node:
    new_node = Node(gang)
    new_node.work(60)
    return new_node


@pytest.mark.parametrize("off_s", OFF_S)
def test_a_clock_that_is_set_while_a_run_goes_on_is_noticed_by_the_next_heartbeat(node: Node, off_s: float) -> None:
    node.ahead_s = off_s
    node.work(6)
    assert _offset(node.gang) == pytest.approx(off_s, abs=3.0)


@pytest.mark.parametrize("off_s", OFF_S)
def test_a_gang_that_trains_on_after_its_clock_was_set_does_not_hang(node: Node, off_s: float) -> None:
    node.ahead_s = off_s
    node.work(10)
    shown = node.gang.snapshot()
    assert shown.standstill is None
    assert shown.nodes[0].heartbeat_age_s is not None
    assert shown.nodes[0].heartbeat_age_s < 5.0
    assert shown.nodes[0].wrote == pytest.approx(node.gang.clock.now, abs=5.0)
    assert shown.last_step_at == pytest.approx(node.gang.clock.now, abs=5.0)


@pytest.mark.parametrize("off_s", OFF_S)
def test_a_gang_that_hangs_after_its_clock_was_set_is_seen_to_hang_as_soon(node: Node, off_s: float) -> None:
    node.ahead_s = off_s
    node.work(10)
    since = node.gang.clock.now
    node.work(90, steps=False)
    hang = node.gang.snapshot().standstill
    assert hang is not None
    assert hang.since == pytest.approx(since, abs=5.0)


def test_which_node_failed_first_is_reported_by_the_clock_that_it_has_now(node: Node) -> None:
    gang = node.gang
    node.ahead_s = 600.0
    node.work(10)
    gang.exit(1, 1, time=gang.clock.now - 3)
    gang.exit(0, 1, time=gang.clock.now - 5 + node.ahead_s)
    for rank in range(2):
        gang.collector(rank).poll(gang.nodes[rank])
    gang.pass_time(gang.monitor(), 2)
    assert next(event.rank for event in gang.events() if event.kind is EventKind.FAILING) == 0


def test_heartbeats_that_nobody_read_in_time_say_nothing_of_the_clock(node: Node) -> None:
    gang = node.gang
    for _ in range(30):
        gang.clock.now += 2.0
        gang.beat(0)
    gang.clock.now += 8 * 3600
    gang.collector().poll(gang.nodes[0])
    assert _offset(gang) == 0.0
    gang.clock.now += 3600
    node.collector.poll(gang.nodes[0])
    assert _offset(gang) == 0.0


def test_a_server_whose_own_clock_is_set_measures_anew(node: Node) -> None:
    node.gang.clock.now += 600.0
    node.ahead_s = -600.0
    node.work(10)
    assert _offset(node.gang) == pytest.approx(-600.0, abs=3.0)
    node.gang.clock.now -= 1200.0
    node.ahead_s = 600.0
    node.work(10)
    assert _offset(node.gang) == pytest.approx(600.0, abs=3.0)
    assert node.gang.snapshot().state is RunState.RUNNING


def test_a_server_whose_clock_is_set_does_not_cut_a_checkpoint_short(gang: Gang) -> None:
    gang.timing = replace(gang.timing, save_deadline_s=50)
    monitor = gang.monitor()
    gang.add_event(EventKind.STOP_REQUESTED, save=True)
    gang.pass_time(monitor, 5)
    monitor._clock = lambda: gang.clock.now + 3600.0
    assert not gang.pass_time(monitor, 30)
    assert "save_timed_out" not in gang.kinds()
    assert gang.pass_time(monitor, 30)
    assert gang.kinds().count("save_timed_out") == 1
