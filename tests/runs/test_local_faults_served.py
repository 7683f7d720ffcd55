"""The reported fault over real sshd: a restarted server lacks the passphrase of one node's key."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.ssh.node import connect
from backend.cluster.ssh.passphrases import Passphrases
from backend.job.job import Job
from backend.runs.controller import Controller
from backend.runs.states import EventKind, RunState
from tests.contract.test_ssh import make_key
from tests.runs.gangs import QUICK, marked, with_mode
from tests.waiting import WITHIN_S, wait_for

pytestmark = [pytest.mark.contract, pytest.mark.slow]

WORD = "correct horse"
PATIENT = replace(QUICK, lost_after_s=1.0, stop_deadline_s=2.0)


@pytest.fixture
def locked_job(cluster: LocalNodes, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a job whose node 1 needs a key with a passphrase."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = make_key(tmp_path / "key", "-t", "ed25519", "-a", "1", "-N", WORD)
    with (cluster.folder / "authorized_keys").open("a") as file:
        file.write(Path(f"{key}.pub").read_text())
    first, second = job.cluster.hosts
    hosts = (first, replace(second, identity_file=key))
    return with_mode(replace(job, cluster=replace(job.cluster, hosts=hosts)), "ok", steps=100_000, step_s=0.05)


def _server(open_controller: Callable[..., Controller], passphrases: Passphrases) -> Controller:
    controller = open_controller(PATIENT, connect=partial(connect, passphrases=passphrases))
    controller.start()
    return controller


def _launched(open_controller: Callable[..., Controller], job: Job) -> str:
    passphrases = Passphrases()
    passphrases.put(str(job.cluster.hosts[1].identity_file), WORD)
    first = _server(open_controller, passphrases)
    run = first.launch(job)
    wait_for(lambda: first.snapshot(run).step)
    first.close()
    return run


def _is_told(controller: Controller, run: str, kind: EventKind) -> bool:
    return any(event.kind is kind and event.rank == 1 for event in controller.snapshot(run).events)


@pytest.mark.e2e
def test_a_server_started_again_without_a_passphrase_leaves_the_run_alone_and_takes_it_up_once_it_is_told(
    open_controller: Callable[..., Controller], locked_job: Job, home: Path
) -> None:
    run = _launched(open_controller, locked_job)
    passphrases = Passphrases()
    server = _server(open_controller, passphrases)
    wait_for(lambda: _is_told(server, run, EventKind.NODE_UNSEEN))
    since = time.monotonic()
    wait_for(lambda: time.monotonic() - since > 5 * PATIENT.lost_after_s)  # The time itself is tested.
    shown = server.snapshot(run)
    assert (shown.state, [node.state for node in shown.nodes]) == (RunState.RUNNING, ["running", "unseen"])
    assert [problem.code for problem in shown.unseen] == ["passphrase_needed"]
    passphrases.put(str(locked_job.cluster.hosts[1].identity_file), WORD)
    wait_for(lambda: _is_told(server, run, EventKind.NODE_REACHABLE))
    assert server.snapshot(run).unseen == ()
    server.stop(run)
    assert server.wait(run, WITHIN_S) is RunState.STOPPED
    assert marked(home, run) == 0


def test_a_stop_by_a_server_without_the_passphrase_ends_once_it_is_told(
    open_controller: Callable[..., Controller], locked_job: Job, home: Path
) -> None:
    run = _launched(open_controller, locked_job)
    passphrases = Passphrases()
    server = _server(open_controller, passphrases)
    server.stop(run)
    wait_for(lambda: _is_told(server, run, EventKind.NODE_STOP_FAILED))
    since = time.monotonic()
    wait_for(lambda: time.monotonic() - since > 3 * PATIENT.stop_deadline_s)
    assert (server.snapshot(run).state, marked(home, run) > 0) == (RunState.STOPPING, True)
    passphrases.put(str(locked_job.cluster.hosts[1].identity_file), WORD)
    assert server.wait(run, WITHIN_S) is RunState.STOPPED
    assert marked(home, run) == 0
