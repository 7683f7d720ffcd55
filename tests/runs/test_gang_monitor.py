"""The gang monitor with nodes in memory: every end of an attempt, lost nodes, stops, and stops with a checkpoint."""

import random
from dataclasses import replace

import pytest

from backend.cluster.node import NodeError, Result
from backend.runs.launch.launch_lock import launch_lock
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts
from backend.runs.supervise.gang_rules import Timing
from tests.runs.conftest import RUN, Gang


def _stops(gang: Gang) -> list[int]:
    return [sum("stop" in argv for argv in node.ran) for node in gang.nodes]


def test_finished_when_every_node_ended_with_zero(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.exit(0)
    gang.exit(1)
    assert not gang.pass_time(monitor, 5)
    assert gang.state() is RunState.RUNNING
    gang.exit(2)
    assert gang.pass_time(monitor, 3)
    assert gang.state() is RunState.FINISHED
    assert _stops(gang) == [0, 0, 0]


def test_one_failure_ends_the_others_within_seconds_and_is_named(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.pass_time(monitor, 3)
    gang.nodes[1].files["/r/node1/rank1.log"] = b"Traceback (most recent call last):\nValueError: boom\n"
    gang.exit(1, 1)
    began = gang.clock.now
    assert gang.pass_time(monitor, 10)
    assert gang.clock.now - began < 5
    assert gang.state() is RunState.FAILED
    cause = gang.cause()
    assert (cause.code, cause.node) == ("training_failed", "10.0.0.2:22")
    assert "boom" in cause.values["lines"]
    assert _stops(gang) == [1, 1, 1], "the culprit too: nothing may be left there"
    with gang.store.read() as connection:
        assert [record.stop for record in attempts.nodes(connection, RUN, 1)] == [{"left": []}] * 3


def test_the_cause_is_reported_before_the_others_are_stopped(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.exit(2, 1)
    gang.pass_time(monitor, 1)
    assert gang.state() is RunState.STOPPING
    assert gang.cause().node == "10.0.0.3:22"
    assert _stops(gang) == [0, 0, 0]


def test_the_final_cause_is_the_earliest_failure_even_if_seen_later(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.exit(0, 1, time=500.0)
    gang.nodes[0].files["/r/node0/rank0.log"] = b"Traceback (most recent call last):\nX: Connection closed by peer\n"
    gang.pass_time(monitor, 1)
    gang.nodes[2].files["/r/node2/rank2.log"] = b"Traceback (most recent call last):\nKeyError: 1\n"
    gang.exit(2, 1, time=499.0)
    gang.pass_time(monitor, 10)
    assert gang.cause().node == "10.0.0.3:22"


def test_stop_ends_every_node_and_keeps_its_proof(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert gang.pass_time(monitor, 4)
    assert gang.state() is RunState.STOPPED
    assert gang.kinds().count("node_stopping") == gang.kinds().count("node_stopped") == 3
    assert gang.cause() is None


def test_processes_that_survive_every_signal_make_the_run_lost_and_are_counted(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.on_stop(1, left=[[77, "python", "D"]])
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert gang.pass_time(monitor, 200)
    assert gang.state() is RunState.LOST
    assert (gang.cause().code, gang.cause().values["processes"]) == ("processes_left", 1)


def test_stop_is_tried_again_when_the_node_comes_back(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.break_link(2)
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert not gang.pass_time(monitor, 20)
    assert gang.kinds().count("node_stop_failed") == 1
    gang.nodes[2].broken = None
    assert gang.pass_time(monitor, 30)
    assert gang.state() is RunState.STOPPED
    assert _stops(gang)[:2] == [1, 1]


def test_a_node_that_stays_away_makes_a_stopped_run_lost(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.break_link(2)
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert gang.pass_time(monitor, 300)
    assert gang.state() is RunState.LOST
    assert (gang.cause().code, gang.cause().node) == ("node_not_stopped", "10.0.0.3:22")


def test_a_lost_node_ends_the_others_and_the_run(gang: Gang) -> None:
    monitor = gang.monitor()
    for _ in range(5):
        gang.beat(0, 1, 2)
        gang.pass_time(monitor, 1)
    gang.break_link(1)
    broken = gang.clock.now
    while not gang.pass_time(monitor, 1):
        gang.beat(0, 2)
    assert 30 <= gang.clock.now - broken <= 45
    assert gang.state() is RunState.LOST
    assert (gang.cause().code, gang.cause().node) == ("node_lost", "10.0.0.2:22")
    assert (1, False) in gang.reports
    assert "stopped" in {event.kind.value[-7:] for event in gang.events() if event.rank == 0}


def test_a_short_outage_is_reported_and_harms_nothing(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.pass_time(monitor, 3)
    gang.break_link(1)
    gang.pass_time(monitor, 10)
    gang.nodes[1].broken = None
    gang.pass_time(monitor, 20)
    assert gang.reports == [(1, False), (1, True)]
    assert gang.state() is RunState.RUNNING


def test_a_server_without_network_never_ends_a_run(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.pass_time(monitor, 3)
    for rank in range(3):
        gang.break_link(rank)
    gang.pass_time(monitor, 600)
    for rank in range(3):
        gang.nodes[rank].broken = None
    gang.pass_time(monitor, 60)
    assert gang.state() is RunState.RUNNING


def test_a_killed_supervisor_is_noticed_by_its_silence(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.nodes[1].on("status", reply={"supervisor": False, "members": [[1, 1, "x"]], "exit": None})
    gang.pass_time(monitor, 10)
    assert gang.state() is RunState.STOPPING
    assert gang.pass_time(monitor, 20)
    assert gang.state() is RunState.FAILED
    assert (gang.cause().code, gang.cause().node) == ("supervisor_gone", "10.0.0.2:22")


def test_a_slow_heartbeat_with_a_living_supervisor_is_left_alone(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.pass_time(monitor, 200)
    assert gang.state() is RunState.RUNNING
    assert sum("status" in argv for argv in gang.nodes[0].ran) <= 200 / Timing().silent_after_s


def test_a_node_whose_run_folder_is_gone_is_reported_once_and_nothing_is_ended(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.nodes[1].on("status", reply=Result(code=2, out="", err="can't open file supervisor.py"))
    gang.pass_time(monitor, 60)
    assert gang.state() is RunState.RUNNING
    events = [event for event in gang.events() if event.kind is EventKind.NODE_SILENT]
    assert [(event.rank, event.detail["problem"]["code"]) for event in events] == [(1, "bad_answer")]


def test_a_node_killed_without_exit_record_is_settled_after_a_short_wait(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.nodes[1].on("stop", reply={"left": []})
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert not gang.pass_time(monitor, 4)
    assert gang.pass_time(monitor, 6)
    assert gang.state() is RunState.STOPPED


def test_stop_with_save_asks_every_node_and_waits(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.add_event(EventKind.STOP_REQUESTED, save=True)
    gang.pass_time(monitor, 100)
    assert all("/control/stop" in "".join(node.files) for node in gang.nodes)
    assert _stops(gang) == [0, 0, 0]
    gang.write(0, "steps.rank0.jsonl", {"step": 5, "time": 1, "total_steps": 9})
    for rank in range(3):
        gang.exit(rank, 0, stopped=True)
        gang.pass_time(monitor, 2)
    assert gang.state() is RunState.STOPPED
    assert "save_timed_out" not in gang.kinds()


def test_a_stop_written_on_a_node_by_hand_is_a_stop(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.write(0, "steps.rank0.jsonl", {"step": 5, "time": 1, "total_steps": 9})
    for rank in range(3):
        gang.exit(rank, 0, stopped=True)
    assert gang.pass_time(monitor, 4)
    assert gang.state() is RunState.STOPPED


def test_a_failure_beside_a_node_that_was_stopped_by_hand_is_a_failure(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.write(0, "steps.rank0.jsonl", {"step": 5, "time": 1, "total_steps": 9})
    gang.exit(1, 1)
    gang.exit(2, None, stopped=True)
    gang.pass_time(monitor, 60)
    assert (gang.state(), gang.cause().node) == (RunState.FAILED, "10.0.0.2:22")


def test_a_run_that_had_done_all_its_steps_is_finished_not_stopped(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.add_event(EventKind.STOP_REQUESTED, save=True)
    gang.write(0, "steps.rank0.jsonl", {"step": 9, "time": 1, "total_steps": 9})
    for rank in range(3):
        gang.exit(rank, 0)
    assert gang.pass_time(monitor, 3)
    assert gang.state() is RunState.FINISHED


def test_a_save_that_takes_too_long_becomes_a_plain_stop(gang: Gang) -> None:
    gang.timing = replace(gang.timing, save_deadline_s=50)
    monitor = gang.monitor()
    gang.add_event(EventKind.STOP_REQUESTED, save=True)
    assert not gang.pass_time(monitor, 45)
    assert gang.pass_time(monitor, 15)
    assert gang.kinds().count("save_timed_out") == 1
    assert gang.state() is RunState.STOPPED


def test_a_node_that_fails_while_saving_ends_the_wait(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.add_event(EventKind.STOP_REQUESTED, save=True)
    gang.pass_time(monitor, 5)
    gang.exit(0, 1)
    assert gang.pass_time(monitor, 6)
    assert gang.state() is RunState.STOPPED


def test_a_second_stop_without_save_does_not_wait(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.add_event(EventKind.STOP_REQUESTED, save=True)
    gang.pass_time(monitor, 5)
    gang.add_event(EventKind.STOP_FORCED)
    assert gang.pass_time(monitor, 5)
    assert _stops(gang) == [1, 1, 1]


def test_a_run_whose_nodes_all_ended_while_nobody_watched_is_folded_right(gang: Gang) -> None:
    gang.write(0, "steps.rank0.jsonl", *[{"step": number, "time": 1, "total_steps": 3} for number in (1, 2, 3)])
    for rank in range(3):
        gang.exit(rank, 0)
    assert gang.pass_time(gang.monitor(), 2)
    assert gang.state() is RunState.FINISHED
    assert len(gang.points()) == 3


def test_a_stop_goes_on_where_a_killed_server_was(gang: Gang) -> None:
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    gang.pass_time(gang.monitor(), 1)
    assert gang.state() is RunState.STOPPING
    assert gang.pass_time(gang.monitor(), 4)
    assert gang.state() is RunState.STOPPED
    assert _stops(gang) == [1, 1, 1]


def test_nothing_is_judged_while_the_launch_is_under_way(gang: Gang) -> None:
    monitor = gang.monitor()
    with launch_lock(gang.home, RUN):
        gang.add_event(EventKind.STOP_REQUESTED, save=False)
        gang.pass_time(monitor, 5)
        assert _stops(gang) == [0, 0, 0]
    assert gang.pass_time(monitor, 5)
    assert gang.state() is RunState.STOPPED


def test_two_leads_of_two_processes_end_a_run_once(gang: Gang) -> None:
    first, second = gang.monitor(), gang.monitor()
    gang.exit(1, 1)
    for _ in range(10):
        gang.pass_time(first, 1)
        second.tick()
    kinds = gang.kinds()
    assert kinds.count("failing") == kinds.count("failed") == kinds.count("node_exited") - 2 == 1


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_a_run_ends_once_and_nothing_is_left_running(gang: Gang, seed: int) -> None:
    """Random histories of exits, outages, user's stops and restarts of the server. test_histories.py runs far more of
    them."""
    chance = random.Random(seed)
    monitor = gang.monitor()
    for _ in range(60):
        act, rank = chance.randrange(8), chance.randrange(3)
        ended = f"/r/node{rank}/exit" in gang.nodes[rank].files
        if act == 0 and not ended:
            gang.exit(rank, chance.choice([0, 0, 1]))
        elif act == 1:
            gang.break_link(rank)
        elif act in (2, 3):
            gang.nodes[rank].broken = None
        elif act == 4 and chance.random() < 0.2:
            gang.add_event(EventKind.STOP_REQUESTED, save=chance.random() < 0.5)
        elif act == 5:
            monitor = gang.monitor()
        gang.beat(*[rank for rank in range(3) if not gang.nodes[rank].broken])
        gang.pass_time(monitor, chance.randrange(1, 12))
    for node in gang.nodes:
        node.broken = None
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert gang.pass_time(monitor, 400)
    finals = [kind for kind in gang.kinds() if kind in ("finished", "failed", "stopped", "lost")]
    assert len(finals) == 1
    everyone_succeeded = all(
        b'"code": 0' in node.files.get(f"/r/node{r}/exit", b"") for r, node in enumerate(gang.nodes)
    )
    assert (finals == ["finished"]) <= everyone_succeeded
    if finals != ["lost"]:
        assert all(f"/r/node{rank}/exit" in node.files for rank, node in enumerate(gang.nodes))


def test_an_answer_that_is_no_answer_counts_as_no_proof(gang: Gang) -> None:
    monitor = gang.monitor()
    for word in ("stop", "/bin/sh"):
        gang.nodes[0].on(word, reply=NodeError("bad_answer", "10.0.0.1", command=word, exit=1, detail="no disk"))
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert gang.pass_time(monitor, 300)
    assert gang.state() is RunState.LOST
    cause = gang.cause()
    assert cause is not None
    assert (cause.code, cause.node, cause.values["mark"]) == ("stop_failed", "10.0.0.1", "MEGABOARD_RUN=m.0")


@pytest.mark.parametrize(
    "gone",
    [
        NodeError("bad_answer", "10.0.0.1", command="py", exit=127, detail="not found"),
        NodeError("timeout", "10.0.0.1", seconds=60),  # The file server is dead.
    ],
)
def test_a_node_whose_python_is_gone_is_stopped_by_a_shell(gang: Gang, gone: NodeError) -> None:
    monitor = gang.monitor()
    gang.nodes[0].on("stop", reply=gone)
    gang.nodes[0].on("/bin/sh", "-s", "/r/node0", "m.0", reply={"left": []})
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert gang.pass_time(monitor, 60)
    assert (gang.state(), gang.cause()) == (RunState.STOPPED, None)
