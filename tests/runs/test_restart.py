"""The gang restarts automatically after faults that a restart can fix, up to the limit."""

import math

import pytest

from backend.job.problems import Problem
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, queue_order, run_store
from backend.runs.supervise import restart
from backend.runs.supervise.restart import FIRST_WAIT_S, GIVE_UP_S
from tests.runs.conftest import RUN, Gang

TRACEBACK = b"Traceback (most recent call last):\n"
CAUSES = {
    "killed": b"",
    "communication_failed": TRACEBACK + b"torch.distributed.DistBackendError: NCCL error: remote process exited\n",
    "gpu_out_of_memory": TRACEBACK + b"torch.OutOfMemoryError: CUDA out of memory.\n",
    "unknown_engine_keys": TRACEBACK + b"ValueError: Some keys are not used by the HfArgumentParser: ['x']\n",
    "disk_full": TRACEBACK + b"OSError: [Errno 28] No space left on device\n",
    "training_failed": TRACEBACK + b"ValueError: mine\n",
}


@pytest.fixture
def allowed(gang: Gang) -> Gang:
    """Allow two restarts."""
    gang.store.write(lambda connection: restart.allow(connection, RUN, 2))
    gang.store.write(lambda connection: run_store.claim(connection, RUN, ["a", "b", "c"]))
    return gang


def _end(gang: Gang, cause: str) -> None:
    monitor = gang.monitor()
    gang.nodes[1].files["/r/node1/rank1.log"] = CAUSES[cause]
    if cause == "killed":
        gang.exit(1, None, signal=9)
    else:
        gang.exit(1, 1)
    assert gang.pass_time(monitor, 20)


def _place(gang: Gang) -> list[queue_order.Waiting]:
    with gang.store.read() as connection:
        return queue_order.waiting(connection)


def _claims(gang: Gang) -> set[str]:
    with gang.store.read() as connection:
        return set(run_store.claims(connection))


@pytest.mark.parametrize("cause", CAUSES)
def test_only_causes_that_a_new_start_can_cure_restart_the_gang(allowed: Gang, cause: str) -> None:
    _end(allowed, cause)
    if cause in ("killed", "communication_failed"):
        assert allowed.state() is RunState.QUEUED
        newest = allowed.events()[-1]
        assert (newest.kind, newest.detail["number"], newest.detail["of"]) == (EventKind.RESTARTING, 1, 2)
        assert newest.detail["problem"]["code"] == cause
        assert [(queued.run, queued.not_before) for queued in _place(allowed)] == [(RUN, newest.time + FIRST_WAIT_S)]
        assert _claims(allowed) == {"a", "b", "c"}, "the gang keeps its nodes"
    else:
        assert allowed.state() is RunState.FAILED
        assert (_place(allowed), _claims(allowed)) == ([], set())


def test_without_leave_nothing_restarts(gang: Gang) -> None:
    _end(gang, "killed")
    assert gang.state() is RunState.FAILED


def test_a_lost_node_restarts_the_gang(allowed: Gang) -> None:
    monitor = allowed.monitor()
    allowed.beat(0, 1, 2)
    allowed.pass_time(monitor, 3)
    allowed.break_link(2)
    while not allowed.pass_time(monitor, 1):
        allowed.beat(0, 1)
    assert allowed.state() is RunState.QUEUED
    assert allowed.events()[-1].detail["problem"]["code"] == "node_lost"


@pytest.mark.parametrize(("xid", "state"), [(94, RunState.QUEUED), (79, RunState.FAILED)])
def test_of_the_gpus_errors_only_the_one_that_a_new_start_cures_restarts_the_gang(
    allowed: Gang, xid: int, state: RunState
) -> None:
    monitor = allowed.monitor()
    error = {"pci": "0000:8a:00", "gpu": 3, "xid": xid, "text": "", "time": allowed.clock.now, "count": 1}
    allowed.exit(1, 1, kernel_log={"xids": [error], "unread": ""})
    assert allowed.pass_time(monitor, 20)
    assert allowed.state() is state


@pytest.mark.parametrize(("steps", "state"), [(3, RunState.QUEUED), (0, RunState.FAILED)])
def test_a_gang_that_hangs_after_some_steps_is_restarted_and_one_that_never_took_any_is_not(
    allowed: Gang, steps: int, state: RunState
) -> None:
    """NCCL's own time-out would be a broken connection. Either it or the supervisor may be first."""
    monitor = allowed.monitor()
    for step in range(steps):
        allowed.write(0, "steps.rank0.jsonl", {"step": step + 1, "time": 1.0, "loss": 1.0})
    allowed.exit(1, None, signal=15, reason="stalled")
    assert allowed.pass_time(monitor, 20)
    assert allowed.state() is state
    assert allowed.events()[-1].detail["problem"]["code"] == "stalled"


def test_a_loss_that_was_not_finite_is_never_restarted(allowed: Gang) -> None:
    allowed.write(0, "steps.rank0.jsonl", {"step": 1, "time": 1.0, "loss": math.nan})
    _end(allowed, "killed")
    assert allowed.state() is RunState.FAILED


def test_a_users_stop_is_a_stop_even_when_a_rank_is_killed_meanwhile(allowed: Gang) -> None:
    monitor = allowed.monitor()
    allowed.add_event(EventKind.STOP_REQUESTED, save=False)
    allowed.exit(1, None, signal=9)
    assert allowed.pass_time(monitor, 20)
    assert allowed.state() is RunState.STOPPED


def _start_again(gang: Gang) -> None:
    """Record what the starter records for the next attempt on the same nodes."""
    number = 1 + gang.kinds().count("starting")

    def write(connection) -> None:  # type: ignore[no-untyped-def]
        run_store.append(connection, RUN, EventKind.PREFLIGHT, time=gang.clock.now)
        attempts.create(connection, RUN, number, master=("a", 1), rendered={}, nodes=gang.records, time=gang.clock.now)
        for kind in (EventKind.STARTING, EventKind.STARTED):
            run_store.append(connection, RUN, kind, time=gang.clock.now)

    gang.store.write(write)


def _end_with_killed(gang: Gang) -> None:
    """Run an attempt that its monitor ends at once."""

    def write(connection) -> None:  # type: ignore[no-untyped-def]
        attempt, now = attempts.newest(connection, RUN), gang.clock.now
        run_store.append(connection, RUN, EventKind.FAILING, time=now)
        restart.end(connection, RUN, attempt, EventKind.FAILED, rank=1, problem=Problem(code="killed"), time=now)

    gang.store.write(write)


def test_after_the_last_allowed_restart_the_run_fails_and_a_resume_counts_anew(allowed: Gang) -> None:
    for number in (1, 2):
        _end_with_killed(allowed)
        assert allowed.events()[-1].detail["number"] == number
        _start_again(allowed)
        assert _place(allowed) == []
    _end_with_killed(allowed)
    assert allowed.state() is RunState.FAILED
    assert allowed.add_event(EventKind.RESUMED)
    _start_again(allowed)
    _end_with_killed(allowed)
    assert (allowed.state(), allowed.events()[-1].detail["number"]) == (RunState.QUEUED, 1)


def test_a_restart_whose_nodes_are_not_ready_waits_longer_each_time_and_gives_up(allowed: Gang) -> None:
    _end_with_killed(allowed)
    began = allowed.clock.now
    problem = Problem(code="unreachable", node="10.0.0.2:22")
    waits = []
    while allowed.clock.now - began < 2 * GIVE_UP_S:
        (queued,) = _place(allowed)
        allowed.clock.now = max(allowed.clock.now, queued.not_before)
        assert allowed.add_event(EventKind.PREFLIGHT)
        now = allowed.clock.now
        if not allowed.store.write(lambda c, now=now: restart.wait_again(c, RUN, problem, now)):
            break
        waits.append(_place(allowed)[0].not_before - now)
    assert waits[:5] == [20.0, 40.0, 80.0, 160.0, 300.0]
    assert GIVE_UP_S <= allowed.clock.now - began <= GIVE_UP_S + 300
    assert allowed.state() is RunState.PREFLIGHT, "whoever starts it tells the failure"


def test_a_restart_that_waits_can_be_cancelled_and_is_proved_to_be_gone(allowed: Gang) -> None:
    _end_with_killed(allowed)
    assert allowed.add_event(EventKind.STOP_REQUESTED, save=False)
    assert _place(allowed) == []
    assert allowed.pass_time(allowed.monitor(), 10)
    assert allowed.state() is RunState.STOPPED
    with allowed.store.read() as connection:
        assert [record.stop for record in attempts.nodes(connection, RUN, 1)] == [{"left": []}] * 3


def test_the_lead_of_an_attempt_leaves_the_next_one_alone(allowed: Gang) -> None:
    monitor = allowed.monitor()
    _end_with_killed(allowed)
    _start_again(allowed)
    allowed.exit(1, 1)
    assert monitor.tick()
    assert allowed.state() is RunState.RUNNING


def test_a_server_killed_in_the_preflight_of_a_restart_puts_it_back(allowed: Gang) -> None:
    _end_with_killed(allowed)
    assert allowed.add_event(EventKind.PREFLIGHT)
    monitor = allowed.monitor()
    assert not monitor.tick()
    assert allowed.state() is RunState.QUEUED
    assert [queued.run for queued in _place(allowed)] == [RUN]
