"""The store's disk is full: a run can still be stopped, and its end is recorded as soon as there is space."""

from collections.abc import Callable
from pathlib import Path

import pytest

from backend.job.job import Job
from backend.job.problems import ProblemsError
from backend.runs.collect import poller
from backend.runs.connections import Connections
from backend.runs.controller import Controller
from backend.runs.states import EventKind, RunState
from backend.runs.store.store import StoreError
from backend.runs.supervise.unrecorded_stop import stop_unrecorded
from tests.full_disk import full_disk
from tests.runs.conftest import RUN, Gang
from tests.runs.gangs import NODES, marked, with_mode
from tests.waiting import WITHIN_S, wait_for


def stop(gang: Gang, *, save: bool = False) -> ProblemsError:
    nodes = {node.name: node for node in gang.nodes}
    why = StoreError("store_full", gang.store.path, "no room")
    connections = Connections(lambda host: nodes[host.address])
    return stop_unrecorded(gang.store, connections, RUN, save=save, grace_s=1.0, why=why)


def test_a_stop_that_cannot_be_recorded_reaches_every_node_and_the_run_ends_as_stopped(gang: Gang) -> None:
    error = stop(gang)
    assert [problem.code for problem in error.problems] == ["stop_unrecorded"]
    assert error.problems[0].values["told"] == error.problems[0].values["nodes"] == 3
    assert gang.kinds()[-1] == "started"
    assert gang.pass_time(gang.monitor(), 20)
    assert gang.state() is RunState.STOPPED


def test_a_node_that_cannot_be_told_is_named(gang: Gang) -> None:
    gang.break_link(1)
    gang.on_stop(2, left=[[77, "python", "D"]])
    result = [(problem.code, problem.node) for problem in stop(gang).problems]
    assert result == [("stop_unrecorded", None), ("unreachable", "10.0.0.2"), ("processes_left", "10.0.0.3")]


def test_a_checkpoint_can_be_asked_for_too(gang: Gang) -> None:
    assert stop(gang, save=True).problems[0].code == "save_unrecorded"
    assert [f"/r/node{rank}/control/stop" in node.files for rank, node in enumerate(gang.nodes)] == [True] * 3


def test_a_run_that_has_nothing_on_its_nodes_is_left_as_it_is(gang: Gang) -> None:
    gang.add_event(EventKind.FAILING)
    gang.add_event(EventKind.FAILED)
    before = [len(node.ran) for node in gang.nodes]
    assert stop(gang).problems[0].code == "store_full"
    assert [len(node.ran) for node in gang.nodes] == before


def test_a_gang_that_is_being_stopped_is_stopped_though_the_store_became_read_only(gang: Gang) -> None:
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    monitor = gang.monitor()
    gang.store.write(lambda connection: connection.execute("PRAGMA query_only = ON"))
    with pytest.raises(StoreError):
        gang.pass_time(monitor, 5)
    assert all(any("stop" in argv for argv in node.ran) for node in gang.nodes)


@pytest.mark.e2e  # A whole gang takes seconds.
def test_a_full_disk_keeps_no_process_alive(
    home: Path, open_controller: Callable[..., Controller], job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "LONGEST_BACK_OFF_S", 1.0)  # A collector must try to store again.
    known_hosts = (home / "known_hosts").read_text()
    with full_disk(home) as disk:
        (home / "known_hosts").write_text(known_hosts)
        server = open_controller()
        server.start()
        run = server.launch(with_mode(job, "ok", steps=100_000))
        wait_for(lambda: (server.snapshot(run).step or 0) > 5)
        disk.fill()
        with pytest.raises(ProblemsError) as caught:
            server.stop(run)
        assert [problem.code for problem in caught.value.problems] == ["stop_unrecorded"]
        assert caught.value.problems[0].values["told"] == NODES
        assert marked(home, run) == 0
        assert server.snapshot(run).state is RunState.RUNNING, "the last good state can still be read"
        disk.free()
        assert server.wait(run, WITHIN_S) is RunState.STOPPED
        server.close()
