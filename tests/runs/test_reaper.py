"""Nodes that return after the end of their run: they are stopped, read completely, and shown in their present state."""

import json

import pytest

from backend.cluster.node import NodeError
from backend.runs.connections import Connections
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, run_store
from backend.runs.supervise.reaper import FIRST_PAUSE_S, FORGOTTEN_AFTER_S, LONGEST_PAUSE_S, Reaper
from backend.runs.view.snapshot import summaries
from tests.runs.conftest import RUN, Gang


def _reaper(gang: Gang) -> Reaper:
    nodes = {node.name: node for node in gang.nodes}

    class Known(Connections):
        def get(self, host):  # type: ignore[no-untyped-def]
            return nodes[host.address]

    connections = Known(lambda host: nodes[host.address])
    return Reaper(gang.store, connections, grace_s=1, clock=gang.clock, monotonic=gang.clock)


def _lose(gang: Gang) -> None:
    """Make node 1 lost. It continues without a monitor."""
    monitor = gang.monitor()
    gang.pass_time(monitor, 40)
    gang.write(1, "steps.rank1.jsonl", {"step": 1, "time": 1})
    gang.break_link(1)
    while not gang.pass_time(monitor, 1):
        gang.beat(0, 2)
    assert gang.state() is RunState.LOST
    gang.write(1, "steps.rank1.jsonl", {"step": 2, "time": 2})


def _pass(gang: Gang, reaper: Reaper, seconds: float) -> None:
    for _ in range(int(seconds)):
        gang.clock.now += 1.0
        reaper.reap()


def _node_state(gang: Gang, rank: int) -> str:
    return gang.snapshot().nodes[rank].state


def test_a_lost_node_that_returns_is_ended_read_and_shown_as_stopped(gang: Gang) -> None:
    _lose(gang)
    reaper = _reaper(gang)
    _pass(gang, reaper, 30)
    assert _node_state(gang, 1) == "lost"
    gang.nodes[1].broken = None
    _pass(gang, reaper, 30 + 2 * FIRST_PAUSE_S)
    assert _node_state(gang, 1) == "stopped"
    assert [point.step for point in gang.points(1)] == [1, 2]
    assert gang.state() is RunState.LOST, "history is not rewritten"
    assert gang.events()[-1].kind is EventKind.NODE_STOPPED
    requested = len(gang.nodes[1].ran)
    _pass(gang, reaper, 3 * LONGEST_PAUSE_S)
    assert len(gang.nodes[1].ran) == requested, "proved once and for all"


def test_a_node_that_goes_away_again_before_it_was_read_is_asked_again_until_it_is(gang: Gang) -> None:
    _lose(gang)
    reaper = _reaper(gang)
    gang.nodes[1].broken, read = None, gang.nodes[1].read
    gang.nodes[1].read = lambda *_: _unreachable()  # type: ignore[method-assign]
    _pass(gang, reaper, 60)
    assert _node_state(gang, 1) == "lost", "who has not told all has not proved all"
    gang.nodes[1].read = read  # type: ignore[method-assign]
    _pass(gang, reaper, 120)
    assert _node_state(gang, 1) == "stopped"
    assert [point.step for point in gang.points(1)] == [1, 2]


def test_processes_that_no_signal_could_end_are_looked_for_again(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.on_stop(1, left=[[77, "python", "D"]])
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert gang.pass_time(monitor, 300)
    reaper = _reaper(gang)
    _pass(gang, reaper, 60)
    assert _left(gang) == [(77, "python", "D")]
    gang.on_stop(1)
    _pass(gang, reaper, 120)
    assert _left(gang) == []


def _left(gang: Gang) -> list[object]:
    with gang.store.read() as connection:
        return attempts.nodes(connection, RUN, 1)[1].stop["left"]  # type: ignore[index]


def test_a_node_that_stays_away_is_asked_ever_more_seldom_and_at_last_forgotten(gang: Gang) -> None:
    _lose(gang)
    reaper = _reaper(gang)
    calls = []
    gang.nodes[1].broken = None
    gang.nodes[1].on("stop", reply=lambda argv, stdin: calls.append(gang.clock.now) or _unreachable())
    _pass(gang, reaper, 3600)
    assert 8 < len(calls) < 15
    gang.clock.now += FORGOTTEN_AFTER_S
    _pass(gang, reaper, 3)
    assert len(calls) < 15


def _unreachable():  # type: ignore[no-untyped-def]
    raise NodeError("unreachable", "10.0.0.2", address="x", port=22, detail=json.dumps("down"))


def test_a_node_of_a_run_that_goes_on_is_not_asked(gang: Gang) -> None:
    reaper = _reaper(gang)
    gang.pass_time(gang.monitor(), 3)
    _pass(gang, reaper, 100)
    assert [node.ran for node in gang.nodes] == [[]] * 3


def test_a_node_with_processes_that_would_not_end_is_not_shown_as_stopped(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.on_stop(1, left=[[77, "python", "D"]])
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    gang.exit(1, None, stopped=True, reason="stopped", left=[[77, "python", "D"]])
    gang.pass_time(monitor, 60)
    assert _node_state(gang, 1) == "stopping"
    assert gang.pass_time(monitor, 300)
    assert _node_state(gang, 1) == "lost"
    gang.on_stop(1)
    _pass(gang, _reaper(gang), 30)
    assert _node_state(gang, 1) == "stopped"


def test_an_ended_run_that_cannot_be_read_is_logged_once_and_hides_no_other(
    gang: Gang, caplog: pytest.LogCaptureFixture
) -> None:
    _lose(gang)
    gang.nodes[1].broken = None
    columns = "(run, attempt, rank, kind, time, detail)"
    gang.store.write(
        lambda c: c.execute(f"INSERT INTO events {columns} VALUES (?, 1, 0, 'of a newer version', 0, '{{}}')", (RUN,))
    )
    reaper, requested = _reaper(gang), len(gang.nodes[1].ran)
    _pass(gang, reaper, 3600)
    assert [record.levelname for record in caplog.records if RUN in record.getMessage()] == ["ERROR"]
    assert "of a newer version" in caplog.text
    assert len(gang.nodes[1].ran) == requested, "nobody knows what may be ended"
    with gang.store.read() as connection:
        (line,) = summaries(connection, {}, gang.clock.now)
    assert (line.state, line.why and line.why.code) == (RunState.BROKEN, "run_unreadable")


def test_a_run_that_can_be_read_again_is_swept_again(gang: Gang) -> None:
    _lose(gang)
    gang.nodes[1].broken = None
    with gang.store.read() as connection:
        job = run_store.run_row(connection, RUN)["job"]
    _set_job(gang, "version: [of, a, newer, one]")
    reaper = _reaper(gang)
    _pass(gang, reaper, 60)
    assert _node_proof(gang, 1) is None
    _set_job(gang, job)
    _pass(gang, reaper, 2 * LONGEST_PAUSE_S)
    assert _node_proof(gang, 1) == {"left": []}


def test_a_stored_exit_that_cannot_be_read_is_no_proof(gang: Gang) -> None:
    """Older servers stored records without a check: an exit with NaN ended the whole reaper."""
    _lose(gang)
    gang.nodes[1].broken = None
    stored = "UPDATE nodes SET exit = ? WHERE run = ? AND rank = 1"
    for text in ('{"code": 0, "left": [], "time": NaN', "null", '{"code": 1, "left": "none"}', "no json"):
        gang.store.write(lambda c, text=text: c.execute(stored, (text, RUN)))
        reaper = _reaper(gang)
        gang.store.write(lambda c: c.execute("UPDATE nodes SET stop = NULL WHERE run = ? AND rank = 1", (RUN,)))
        _pass(gang, reaper, 30)
        assert _node_proof(gang, 1) == {"left": []}, text


def _set_job(gang: Gang, job: str) -> None:
    gang.store.write(lambda c: c.execute("UPDATE runs SET job = ? WHERE id = ?", (job, RUN)))


def _node_proof(gang: Gang, rank: int) -> object:
    with gang.store.read() as connection:
        return attempts.nodes(connection, RUN, 1)[rank].stop
