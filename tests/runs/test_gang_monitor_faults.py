"""Faults from tests/chaos without a network: the node that is blamed when a node is gone."""

from backend.runs.states import EventKind, RunState
from tests.runs.conftest import Gang

PEER_GONE = b"Traceback (most recent call last):\nConnectionError: Connection closed by peer\n"


def _others_fail(gang: Gang, *ranks: int) -> None:
    for rank in ranks:
        gang.nodes[rank].files[f"/r/node{rank}/rank{rank}.log"] = PEER_GONE
        gang.exit(rank, 1)


def test_a_node_that_died_is_to_blame_for_what_the_others_say_of_it(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.pass_time(monitor, 3)
    gang.break_link(1)
    gang.pass_time(monitor, 1)
    _others_fail(gang, 0, 2)
    gang.pass_time(monitor, 2)
    assert (gang.cause().code, gang.cause().node) == ("node_lost", "10.0.0.2:22"), "named at once"
    began = gang.clock.now
    assert gang.pass_time(monitor, 60)
    assert gang.clock.now - began < 45, "nobody waits for two minutes for a dead machine"
    assert gang.state() is RunState.LOST
    assert (gang.cause().code, gang.cause().node) == ("node_lost", "10.0.0.2:22")


def test_a_cause_that_is_known_is_reported_though_another_node_cannot_be_reached(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.pass_time(monitor, 3)
    gang.break_link(1)
    gang.nodes[0].files["/r/node0/rank0.log"] = (
        b"Traceback (most recent call last):\nModuleNotFoundError: No module named boom\n"
    )
    gang.exit(0, 1)
    assert gang.pass_time(monitor, 60)
    assert gang.state() is RunState.LOST
    assert (gang.cause().code, gang.cause().node) == ("module_missing", "10.0.0.1:22")


def test_a_short_outage_while_another_node_fails_blames_nobody_wrongly(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.pass_time(monitor, 3)
    gang.break_link(1)
    gang.pass_time(monitor, 1)
    _others_fail(gang, 0)
    gang.pass_time(monitor, 2)
    gang.nodes[1].broken = None
    assert gang.pass_time(monitor, 30)
    assert gang.state() is RunState.FAILED
    assert gang.cause().node == "10.0.0.1:22"


def test_a_stop_that_a_user_wished_waits_for_a_node_longer_than_a_failure_does(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.pass_time(monitor, 40)
    gang.break_link(1)
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert not gang.pass_time(monitor, 60)
    gang.nodes[1].broken = None
    assert gang.pass_time(monitor, 30)
    assert gang.state() is RunState.STOPPED


def test_processes_that_the_supervisor_itself_could_not_end_make_a_stopped_run_lost(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.on_stop(1, left=[[77, "python", "D"]])
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    gang.exit(1, None, stopped=True, reason="stopped", left=[[77, "python", "D"]])
    assert gang.pass_time(monitor, 300)
    assert gang.state() is RunState.LOST
    assert (gang.cause().code, gang.cause().node) == ("processes_left", "10.0.0.2:22")
