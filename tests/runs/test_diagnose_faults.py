"""Faults from tests/chaos that used to blame a wrong node or no node."""

import pytest

from backend.runs.states import EventKind, RunState
from tests.runs.conftest import Gang

STOOD = [[41, "python3", "T", 2]]


def _beat_stuck(gang: Gang, rank: int) -> None:
    beat = {"time": gang.clock.now, "members": [[41, 2]], "gpus": [], "stuck": STOOD}
    gang.write(rank, "heartbeat.jsonl", beat)


def test_a_process_that_stands_still_is_reported_once_and_blamed_for_the_stall_of_all(gang: Gang) -> None:
    monitor = gang.monitor()
    for _ in range(3):
        _beat_stuck(gang, 2)
        gang.pass_time(monitor, 2)
    assert [(event.rank, event.detail["stuck"]) for event in gang.events() if event.kind is EventKind.NODE_STUCK] == [
        (2, [(41, "python3", "T", 2)])
    ]
    gang.nodes[2].files["/r/node2/rank2.log"] = b"[step 7]\n"
    gang.exit(0, None, reason="stalled")
    gang.pass_time(monitor, 1)
    assert (gang.cause().code, gang.cause().node) == ("process_stuck", "10.0.0.3:22"), "at once"
    assert gang.pass_time(monitor, 30)
    assert gang.state() is RunState.FAILED
    values = gang.cause().values
    assert (values["processes"], values["rank"], values["file"]) == ("rank 2: python3 41 (T)", 2, "rank2.log")


def test_a_process_that_stands_still_is_blamed_for_the_time_outs_of_the_others(gang: Gang) -> None:
    monitor = gang.monitor()
    _beat_stuck(gang, 2)
    gang.nodes[0].files["/r/node0/rank0.log"] = b"Watchdog caught collective operation timeout\n"
    gang.exit(0, 1)
    assert gang.pass_time(monitor, 30)
    assert (gang.cause().code, gang.cause().node) == ("process_stuck", "10.0.0.3:22")


@pytest.mark.parametrize(("moved", "code"), [(False, "process_stuck"), (True, "stalled")])
def test_a_process_that_its_own_supervisor_woke_to_end_it_is_blamed_unless_steps_came_since(
    gang: Gang, moved: bool, code: str
) -> None:
    monitor = gang.monitor()
    gang.write(0, "steps.rank0.jsonl", {"step": 1, "time": gang.clock.now})
    gang.pass_time(monitor, 2)
    _beat_stuck(gang, 2)
    gang.pass_time(monitor, 2)
    if moved:
        gang.write(0, "steps.rank0.jsonl", {"step": 2, "time": gang.clock.now})
    gang.beat(2)
    gang.pass_time(monitor, 2)
    gang.exit(0, None, reason="stalled")
    gang.pass_time(monitor, 1)
    assert gang.cause().code == code


def test_a_failure_of_its_own_is_not_blamed_on_a_process_that_stands_still(gang: Gang) -> None:
    monitor = gang.monitor()
    _beat_stuck(gang, 2)
    gang.nodes[0].files["/r/node0/rank0.log"] = b"Traceback (most recent call last):\nValueError: boom\n"
    gang.exit(0, 1)
    assert gang.pass_time(monitor, 30)
    assert gang.cause().node == "10.0.0.1:22"


def test_a_node_that_died_of_its_full_disk_is_named_though_it_could_not_write_why(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.exit(1, 1, disk_full=True)
    assert gang.pass_time(monitor, 30)
    assert (gang.cause().code, gang.cause().node) == ("disk_full", "10.0.0.2:22")


def test_a_node_whose_supervisor_was_killed_with_its_processes_is_blamed_for_the_closed_connections(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.nodes[0].files["/r/node0/rank0.log"] = b"Traceback (most recent call last):\nX: Connection closed by peer\n"
    gang.exit(0, 1)
    gang.pass_time(monitor, 1)
    gang.exit(1, None, stopped=True, reason="stopped", gone="supervisor")
    assert gang.pass_time(monitor, 30)
    assert (gang.cause().code, gang.cause().node) == ("supervisor_gone", "10.0.0.2:22")


def test_what_a_node_said_when_it_was_stopped_counts_though_its_exit_could_not_be_read(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.nodes[0].files["/r/node0/rank0.log"] = b"Traceback (most recent call last):\nX: Connection closed by peer\n"
    gang.exit(0, 1)
    gang.nodes[1].on("stop", reply={"left": [], "exit": {"code": None, "stopped": True, "gone": "restart", "left": []}})
    assert gang.pass_time(monitor, 60)
    assert (gang.cause().code, gang.cause().node) == ("node_restarted", "10.0.0.2:22")


def test_a_machine_that_restarted_is_named_as_that(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.nodes[1].on("status", reply={"supervisor": False, "rebooted": True, "members": [], "exit": None})
    assert gang.pass_time(monitor, 40)
    assert (gang.cause().code, gang.cause().node) == ("node_restarted", "10.0.0.2:22")


def _xid(code: int, gpu: int | None, text: str = "", at: float = 0.0, count: int = 1) -> dict[str, object]:
    return {"pci": "0000:8a:00", "gpu": gpu, "xid": code, "text": text, "time": at, "count": count}


DBE = "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer"
"""https://github.com/NVIDIA/nvidia-docker/issues/849"""
TIMED_OUT = b"Watchdog caught collective operation timeout\n"


def test_the_gpu_that_the_kernel_log_names_is_blamed_though_another_node_was_the_first_to_complain(gang: Gang) -> None:
    """Its own rank only hung and was stopped with the others. A neighbour's link failed with it."""
    monitor = gang.monitor()
    gang.nodes[0].files["/r/node0/rank0.log"] = TIMED_OUT
    now = gang.clock.now
    gang.exit(0, 1, kernel_log={"xids": [_xid(74, 0, at=now - 60)], "unread": ""})
    gang.pass_time(monitor, 1)
    broken = [_xid(74, 2, at=now - 59), _xid(48, 3, DBE, at=now - 50, count=2), _xid(45, 3, at=now)]
    gang.exit(2, None, stopped=True, reason="stopped", kernel_log={"xids": broken, "unread": ""})
    assert gang.pass_time(monitor, 30)
    cause = gang.cause()
    assert (cause.code, cause.node, cause.values["gpu"]) == ("gpu_memory_error", "10.0.0.3:22", "3 (PCI 0000:8a:00)")
    assert DBE in cause.values["lines"]
    events = [(event.rank, event.detail["xids"]) for event in gang.events() if event.kind is EventKind.GPU_ERROR]
    assert [(rank, [xid["xid"] for xid in xids]) for rank, xids in events] == [(0, [74]), (2, [74, 48, 45])]


def test_a_cause_that_the_rank_itself_tells_comes_before_the_gpu_s(gang: Gang) -> None:
    monitor = gang.monitor()
    log = {"xids": [_xid(79, None, at=gang.clock.now)], "unread": ""}
    gang.nodes[1].files["/r/node1/rank1.log"] = b"Traceback (most recent call last):\ntorch.OutOfMemoryError: x\n"
    gang.exit(1, 1, kernel_log=log)
    assert gang.pass_time(monitor, 30)
    assert gang.cause().code == "gpu_out_of_memory"


def test_what_a_run_lived_through_for_hours_did_not_end_it(gang: Gang) -> None:
    monitor = gang.monitor()
    log = {"xids": [_xid(94, 1, at=gang.clock.now - 3 * 3600)], "unread": ""}
    gang.exit(1, 1, kernel_log=log)
    assert gang.pass_time(monitor, 30)
    assert gang.cause().code == "training_failed"


def test_a_kernel_log_that_could_not_be_read_is_reported_of_the_node_that_failed(gang: Gang) -> None:
    monitor = gang.monitor()
    refused = {"xids": [], "unread": "dmesg: read kernel buffer failed: Operation not permitted"}
    gang.exit(1, 1, kernel_log=refused)
    gang.pass_time(monitor, 1)
    gang.exit(0, None, stopped=True, reason="stopped", kernel_log=refused)
    assert gang.pass_time(monitor, 30)
    events = [(event.rank, event.detail) for event in gang.events() if event.kind is EventKind.KERNEL_LOG_UNREAD]
    assert events == [(1, {"reason": refused["unread"]})]


NO_WAY = b"Traceback (most recent call last):\nRuntimeError: [enforce fail at third_party/gloo/gloo/transport/tcp/socket.cc:142] rv != -1. -1 vs -1. connect: Network is unreachable\n"  # noqa: E501


def test_a_node_that_told_the_others_a_wrong_address_is_named_though_only_they_fail(gang: Gang) -> None:
    monitor = gang.monitor()
    for rank in (0, 2):
        gang.nodes[rank].files[f"/r/node{rank}/rank{rank}.log"] = NO_WAY
        gang.exit(rank, 1)
    assert gang.pass_time(monitor, 30)
    assert (gang.cause().code, gang.cause().node) == ("wrong_interface", "10.0.0.2:22")
