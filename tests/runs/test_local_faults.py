"""A fault of the server's own machine says nothing about a node: it ends no run, and it is shown with its fix."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.text.unmonitored import lines
from backend.cluster.node import LOCAL_CODES, Node, NodeError
from backend.runs.collect.collector import Polled
from backend.runs.collect.poller import HEARD_S, Poller, record_connection
from backend.runs.states import EventKind, RunState
from backend.runs.store.store import StoreError
from backend.runs.supervise.gang_rules import NodeView, judge
from tests.clock import Clock
from tests.fakes import FakeNode
from tests.runs.conftest import RUN, Gang

VALUES = {
    "agent": "/run/agent", "seconds": "8", "detail": "x", "identity_file": "/k", "address": "a", "port": 22,
    "path": "/c", "line": "3", "variable": "V", "setting": "c", "most": 4, "jump": "j", "user": "u", "keys": 1,
    "key_type": "k", "fingerprint": "f",
}  # fmt: skip


def _fault(code: str = "passphrase_needed", node: str = "10.0.0.2") -> NodeError:
    return NodeError(code, node, **VALUES)


class _Source:
    """The node of a poller. It raises the exception that the test sets."""

    error: Exception | None = None

    def poll(self, node: Node) -> Polled:
        if self.error:
            raise self.error
        return Polled(heartbeat=True, more=False, ended=False)


def _poller(source: _Source, clock: Clock, **more: bool) -> tuple[Poller, list[str | None]]:
    reports: list[str | None] = []
    poller = Poller(
        source,
        lambda: FakeNode(),
        lambda error: reports.append(error.code if error else None),
        monotonic=clock,
        **more,
    )
    return poller, reports


def _pass(poller: Poller, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1.0
        poller.step()


@pytest.mark.parametrize("code", sorted(LOCAL_CODES))
def test_no_fault_of_this_side_counts_as_time_up_or_down(code: str) -> None:
    clock, source = Clock(), _Source()
    poller, _ = _poller(source, clock)
    _pass(poller, clock, 40)
    source.error = _fault(code)
    _pass(poller, clock, 100)
    up_s, down_s, silent_s = poller.connection()
    assert (up_s, down_s, silent_s) == (None, None, 100.0)


@pytest.mark.parametrize("code", ["unreachable", "timeout", "lost", "refused", "host_key_changed", "node_io"])
def test_what_the_network_or_the_node_says_counts(code: str) -> None:
    clock, source = Clock(), _Source()
    poller, _ = _poller(source, clock)
    source.error = _fault(code)
    _pass(poller, clock, 41)
    assert poller.connection()[1] == 40.0


def test_rows_that_cannot_be_stored_make_no_witness_and_no_loss() -> None:
    clock, source = Clock(), _Source()
    poller, _ = _poller(source, clock)
    _pass(poller, clock, 40)
    source.error = StoreError("store_full", Path("/x"), "full")
    _pass(poller, clock, 100)
    assert poller.connection()[:2] == (None, None)


def test_an_unexpected_error_makes_no_witness() -> None:
    clock, source = Clock(), _Source()
    poller, _ = _poller(source, clock)
    _pass(poller, clock, 40)
    source.error = RuntimeError("can't start new thread")
    with pytest.raises(RuntimeError):
        poller.step()
    assert poller.connection()[:2] == (None, None)


def test_the_time_down_begins_anew_after_a_fault_of_this_side() -> None:
    clock, source = Clock(), _Source()
    poller, _ = _poller(source, clock)
    source.error = _fault("unreachable")
    _pass(poller, clock, 25)
    source.error = _fault("local_resources")
    _pass(poller, clock, 1)
    source.error = _fault("unreachable")
    _pass(poller, clock, 10)
    assert poller.connection()[1] == 9.0


def test_a_server_started_again_tells_that_a_node_can_be_read_which_the_last_one_could_not() -> None:
    clock, source = Clock(), _Source()
    poller, reports = _poller(source, clock, was_away=True)
    _pass(poller, clock, 5)
    assert reports == [None]


def test_another_fault_is_told_too() -> None:
    clock, source = Clock(), _Source()
    poller, reports = _poller(source, clock)
    for code in ("passphrase_needed", "passphrase_wrong", "unreachable"):
        source.error = _fault(code)
        _pass(poller, clock, 3)
    source.error = None
    _pass(poller, clock, 3)
    assert list(dict.fromkeys(reports)) == ["passphrase_needed", "passphrase_wrong", "unreachable", None]


def test_a_node_that_cannot_be_looked_at_is_neither_lost_nor_a_witness() -> None:
    unknown = NodeView(rank=0, silent_s=3600.0)
    gone = NodeView(rank=1, down_s=3600.0, silent_s=3600.0)
    assert judge([NodeView(rank=1, up_s=100.0), unknown]).act == "keep"
    assert judge([unknown, gone]).act == "keep"


def _look(gang: Gang, monitor, seconds: int, *, beats: tuple[int, ...]) -> bool:  # type: ignore[no-untyped-def]
    for _ in range(seconds):
        gang.beat(*beats)
        if gang.pass_time(monitor, 1):
            return True
    return False


@pytest.mark.parametrize("code", ["passphrase_needed", "local_resources", "agent_hangs", "bad_ssh_config"])
def test_a_server_started_again_that_cannot_look_at_a_node_leaves_the_run_alone_and_takes_it_up(
    gang: Gang, code: str
) -> None:
    """The run of the reported fault was ended as lost after 36 s, while node 1 continued to train."""
    _look(gang, gang.monitor(), 5, beats=(0, 1, 2))
    gang.record_reports = True
    gang.nodes[1].broken = _fault(code)
    monitor = gang.monitor()
    _look(gang, monitor, 300, beats=(0, 2))
    assert gang.state() is RunState.RUNNING
    shown = gang.snapshot()
    assert [node.state for node in shown.nodes][1] == "unseen"
    assert [problem.code for problem in shown.unseen] == [code]
    for lang in ("en", "zh"):
        assert len(lines(shown, lang)) == 3
    assert gang.kinds().count("node_unseen") == 1
    gang.nodes[1].broken = None
    _look(gang, monitor, 20, beats=(0, 1, 2))
    assert gang.kinds()[-1] == "node_reachable"
    assert (gang.snapshot().unseen, gang.state()) == ((), RunState.RUNNING)


@pytest.mark.parametrize(("unseen", "silent"), [(None, (1, 2)), (0, None), (1, (2,))])
def test_what_the_server_cannot_look_at_is_not_called_a_hang(
    gang: Gang, unseen: int | None, silent: tuple[int, ...] | None
) -> None:
    """The steps come from node 0. Without them the progress is unknown."""
    rows = [{"step": step, "time": gang.clock.now + step, "step_s": 1.0, "total_steps": 900} for step in range(1, 30)]
    gang.write(0, "steps.rank0.jsonl", *rows)
    gang.beat(0, 1, 2)
    for rank in range(3):
        gang.collector(rank).poll(gang.nodes[rank])
    gang.clock.now += 3000.0
    gang.beat(0)
    gang.collector(0).poll(gang.nodes[0])
    gang.clock.now += 1.0
    if unseen is not None:
        record_connection(gang.store, RUN, 1, unseen, _fault(), gang.clock.now + (HEARD_S if unseen == 0 else 0))
    hang = gang.snapshot().standstill
    assert (None if hang is None else hang.silent) == silent


def test_a_fault_of_one_process_is_not_reported_while_another_reads_the_node(gang: Gang) -> None:
    """A command line without the passphrase runs beside a server with it."""
    gang.beat(1)
    gang.collector(1).poll(gang.nodes[1])
    record_connection(gang.store, RUN, 1, 1, _fault(), gang.clock.now + HEARD_S - 1)
    assert "node_unseen" not in gang.kinds()
    record_connection(gang.store, RUN, 1, 1, _fault(), gang.clock.now + HEARD_S + 1)
    assert gang.snapshot().nodes[1].state == "unseen"
    gang.clock.now += 60
    gang.beat(1)
    gang.collector(1).poll(gang.nodes[1])
    shown = gang.snapshot()
    assert (shown.nodes[1].state == "unseen", shown.unseen) == (False, ())


def test_a_stop_that_this_server_cannot_carry_out_waits_until_that_is_mended(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.nodes[2].broken = _fault("passphrase_needed", "10.0.0.3")
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert not gang.pass_time(monitor, 600)
    assert gang.state() is RunState.STOPPING
    failed = [event for event in gang.events() if event.kind is EventKind.NODE_STOP_FAILED]
    assert [event.detail["problem"]["code"] for event in failed] == ["passphrase_needed"]
    gang.nodes[2].broken = None
    assert gang.pass_time(monitor, 30)
    assert gang.state() is RunState.STOPPED


def test_a_node_that_is_away_when_the_fault_is_mended_has_the_usual_time_to_come_back(gang: Gang) -> None:
    monitor = gang.monitor()
    gang.nodes[2].broken = _fault("passphrase_needed", "10.0.0.3")
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    gang.pass_time(monitor, 600)
    gang.break_link(2)
    assert not gang.pass_time(monitor, 100)
    assert gang.pass_time(monitor, 60)
    assert (gang.state(), gang.cause().code) == (RunState.LOST, "node_not_stopped")


def test_a_fault_that_nobody_mends_ends_the_stop_and_is_named_as_what_kept_the_server_from_it(gang: Gang) -> None:
    gang.timing = replace(gang.timing, mend_deadline_s=400.0)
    monitor = gang.monitor()
    gang.nodes[2].broken = _fault("agent_hangs", "10.0.0.3")
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    assert gang.pass_time(monitor, 500)
    cause = gang.cause()
    assert cause is not None
    assert (gang.state(), cause.code, cause.node) == (RunState.LOST, "agent_hangs", "10.0.0.3")


def test_a_failed_run_waits_for_the_node_that_it_cannot_stop_and_keeps_its_cause(gang: Gang) -> None:
    monitor = gang.monitor()
    _look(gang, monitor, 3, beats=(0, 1, 2))
    gang.nodes[1].broken = _fault()
    gang.nodes[0].files["/r/node0/rank0.log"] = (
        b"Traceback (most recent call last):\nModuleNotFoundError: No module named boom\n"
    )
    gang.exit(0, 1)
    assert not gang.pass_time(monitor, 300)
    gang.nodes[1].broken = None
    assert gang.pass_time(monitor, 30)
    assert (gang.state(), gang.cause().code) == (RunState.FAILED, "module_missing")
