"""The launch session between the page and the nodes: what a check allows, and that a launch starts once."""

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.services import Services
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.launch import shown_key
from app.wizard.launch_session import LaunchSession
from backend import engines
from backend.cluster.preflight.results import Checks
from backend.cluster.ssh.host_keys import HostKey
from backend.engines import CheckedJob
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import Problem, ProblemsError
from backend.runs.controller import Controller
from backend.runs.launch.preflight import PreflightReport, warning_key
from backend.runs.states import RunState
from tests.app.conftest import READY
from tests.waiting import WITHIN_S


class Nodes:
    """A controller whose nodes answer when a test lets them. It counts launches."""

    def __init__(self, *reports: PreflightReport) -> None:
        self.reports = list(reports)
        self.let = threading.Event()
        self.launched: list[Job] = []
        self.queued: list[Job] = []
        self.state = RunState.QUEUED
        self.accepted: list[HostKey] = []
        self.sources: list[tuple[str, int] | None] = []
        self.accepts: list[set[str]] = []
        self.late: tuple[Problem, ...] = ()
        """Warnings that only the launch finds."""
        self.lost = 0
        self.tasks = self

    def preflight(self, job: CheckedJob) -> PreflightReport:
        assert self.let.wait(WITHIN_S)
        return self.reports.pop(0)

    def accept_host_keys(self, keys: list[HostKey]) -> None:
        self.accepted += keys

    def find_source(self, run: str, step: int, job: Job) -> None:
        if step == self.lost:
            raise ProblemsError([Problem(code="checkpoint_missing")])

    def launch(
        self,
        job: CheckedJob,
        *,
        restarts: int,
        source: tuple[str, int] | None,
        accepted_warnings: Collection[str],
        queue: bool = False,
    ) -> str:
        if queue:
            self.queued.append(job.job)
            self.accepts.append(set(accepted_warnings))
            return f"queued-{len(self.queued)}"
        assert self.let.wait(WITHIN_S)
        self.accepts.append(set(accepted_warnings))
        if self.late:
            raise ProblemsError([Problem(code="warnings_not_accepted"), *self.late])
        self.sources.append(source)
        self.launched.append(job.job)
        return f"run-{len(self.launched)}"

    def snapshot(self, run: str) -> SimpleNamespace:
        return SimpleNamespace(state=self.state)

    def copy_missing(self, job: Job, report: PreflightReport, tell: Callable[[int, int], None]) -> tuple[Problem, ...]:
        tell(1, 2)
        return (Problem(code="copy_left", severity="warning"),)


def rest(session: LaunchSession) -> Any:
    state = session.state()
    while state.is_busy:
        state = session.wait(state.version, 10)
    return state


@pytest.fixture
def job(services: Services) -> Job:
    change(services, READY)
    job = read(services.draft.job_mapping(), services.home).job
    assert job is not None
    return job


def session_of(nodes: Nodes) -> LaunchSession:
    return LaunchSession(cast(Controller, nodes), lambda: 0.0)


def test_a_green_check_serves_one_launch(job: Job) -> None:
    nodes = Nodes(PreflightReport())
    nodes.let.set()
    session = session_of(nodes)
    with pytest.raises(ProblemsError):
        session.launch(job)
    session.check(job)
    assert rest(session).is_green_for(job)
    nodes.let.clear()
    session.launch(job)
    with pytest.raises(ProblemsError):
        session.launch(job)
    nodes.let.set()
    assert rest(session).run == "run-1"
    with pytest.raises(ProblemsError):
        session.launch(job)
    assert len(nodes.launched) == 1


def test_a_check_with_warnings_opens_the_launch_for_whoever_has_accepted_them(job: Job) -> None:
    small = Checks(0, "10.0.0.1").warning("shm", "shm_small", "cluster.hosts[0].address", mib=64)
    warned = PreflightReport(checks=(small,))
    nodes = Nodes(warned, warned)
    nodes.let.set()
    session = session_of(nodes)
    session.check(job)
    earlier = rest(session).version
    session.check(job)
    assert rest(session).is_green_for(job)
    # Those of an earlier check, which another tab may still show, are not those of this one.
    for accepted in (None, True, earlier):
        for begin in (session.launch, session.queue):
            with pytest.raises(ProblemsError) as refused:
                begin(job, accepted=accepted)
            assert refused.value.problems[0].code == "warnings_not_accepted"
    session.launch(job, accepted=session.state().version)
    assert rest(session).run == "run-1"
    assert nodes.accepts == [{warning_key(warning) for warning in warned.warnings}]


def test_the_warnings_of_the_check_at_hand_are_accepted_for_the_queue_and_none_without_one(job: Job) -> None:
    small = Checks(0, "10.0.0.1").warning("shm", "shm_small", "cluster.hosts[0].address", mib=64)
    busy = Checks(0, "10.0.0.1").wrong("lock", "node_locked", "cluster.hosts[0].address", run="other")
    warned = PreflightReport(checks=(small, busy), problems=(Problem(code="node_locked"),))
    nodes = Nodes(warned)
    nodes.let.set()
    session = session_of(nodes)
    session.check(job)
    session.queue(job, accepted=rest(session).version)
    session.queue(replace(job, name="another"), accepted=rest(session).version)
    assert nodes.accepts == [{warning_key(warning) for warning in warned.warnings}, set()]


def test_a_warning_that_only_the_launch_finds_was_accepted_by_nobody_and_shuts_it_with_its_words(job: Job) -> None:
    nodes = Nodes(PreflightReport())
    nodes.late = (Problem(code="gpus_busy", severity="warning", node="10.0.0.1"),)
    nodes.let.set()
    session = session_of(nodes)
    session.check(job)
    session.launch(job, accepted=rest(session).version)
    state = rest(session)
    assert nodes.accepts == [set()]
    assert nodes.late[0] in state.problems
    assert state.run is None
    assert not state.is_green_for(job)


def test_a_job_is_checked_once_from_the_check_to_the_launch_and_an_edited_one_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Job] = []
    check_all = engines.check_all
    monkeypatch.setattr(engines, "check_all", lambda job: [checked.append(job), *check_all(job)][1:])
    nodes = Nodes(*[PreflightReport()] * 2)
    nodes.let.set()
    session = session_of(nodes)
    session.check(job)
    rest(session)
    session.launch(replace(job))
    rest(session)
    assert (checked, nodes.launched) == ([job], [job])
    edited = with_values(job, {"extra": {"full_determinism": 1}})
    session.check(edited)
    rest(session)
    session.queue(with_values(job, {"extra": {"full_determinism": True}}))
    assert [each.extra for each in checked[1:]] == [{"full_determinism": 1}, {"full_determinism": True}]
    assert nodes.queued[0].extra["full_determinism"] is True


def test_an_edit_after_the_check_closes_the_launch(job: Job, services: Services) -> None:
    nodes = Nodes(PreflightReport())
    nodes.let.set()
    session = session_of(nodes)
    session.check(job)
    rest(session)
    change(services, {"training.max_steps": 7})
    edited = read(services.draft.job_mapping(), services.home).job
    assert not session.state().is_green_for(edited)
    with pytest.raises(ProblemsError):
        session.launch(cast(Job, edited))
    assert session.state().is_green_for(job)


def test_a_red_check_opens_nothing(job: Job) -> None:
    nodes = Nodes(PreflightReport(problems=(Problem(code="unreachable", node="10.0.0.1"),)))
    nodes.let.set()
    session = session_of(nodes)
    session.check(job)
    assert not rest(session).is_green_for(job)


def test_a_check_is_for_one_checkpoint_and_finds_one_that_is_lost(job: Job) -> None:
    nodes = Nodes(*[PreflightReport()] * 3)
    nodes.let.set()
    session = session_of(nodes)
    session.check(job, ("run", 40))
    assert rest(session).is_green_for(job, ("run", 40))
    for other in (("run", 20), None):
        with pytest.raises(ProblemsError):
            session.launch(job, other)
    session.launch(job, ("run", 40))
    assert (rest(session).run, nodes.sources) == ("run-1", [("run", 40)])
    nodes.lost = 20
    session.check(job, ("run", 20))
    state = rest(session)
    assert [problem.code for problem in state.problems] == ["checkpoint_missing"]
    assert not state.is_green_for(job, ("run", 20))


def test_two_tabs_queue_a_job_once_and_an_edited_one_again(job: Job, services: Services) -> None:
    nodes = Nodes()
    session = session_of(nodes)
    for _ in range(2):
        session.queue(job)
    assert (session.state().phase, session.state().run, nodes.queued) == ("queued", "queued-1", [job])
    change(services, {"training.seed": 7})
    edited = read(services.draft.job_mapping(), services.home).job
    assert edited is not None
    session.queue(edited)
    assert (session.state().run, nodes.queued) == ("queued-2", [job, edited])
    nodes.state = RunState.RUNNING
    session.queue(edited)
    assert session.state().run == "queued-3", "the one before has started: this one is meant"


def test_two_checks_at_once_are_one(job: Job) -> None:
    nodes = Nodes(PreflightReport())
    session = session_of(nodes)
    session.check(job)
    session.check(job)
    nodes.let.set()
    assert rest(session).phase == "checked"
    assert nodes.reports == []


def test_only_confirmed_fingerprints_are_accepted_and_the_nodes_checked_again(job: Job) -> None:
    keys = tuple(
        HostKey(host=f"10.0.0.{n}", port=22, key_type="ssh-ed25519", fingerprint=f"SHA256:{n}", line="") for n in (1, 2)
    )
    unknown = PreflightReport(unknown_host_keys=keys, problems=(Problem(code="host_key_unknown"),))
    nodes = Nodes(unknown, PreflightReport())
    nodes.let.set()
    session = session_of(nodes)
    session.check(job)
    rest(session)
    session.accept(["SHA256:2", "SHA256:of-something-else"])
    assert nodes.accepted == [keys[1]]
    assert rest(session).is_green_for(job)


@pytest.mark.parametrize(
    ("port", "kind", "command"),
    [
        (22, "ssh-ed25519", "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"),
        (2222, "ssh-ed25519", "ssh-keyscan -t ed25519 -p 2222 127.0.0.1 2>/dev/null | ssh-keygen -lf -"),
        (2222, "ecdsa-sha2-nistp256", "ssh-keyscan -t ecdsa -p 2222 127.0.0.1 2>/dev/null | ssh-keygen -lf -"),
    ],
)
def test_a_fingerprint_is_compared_with_that_of_the_sshd_that_showed_it(port: int, kind: str, command: str) -> None:
    """It is not compared with the machine's key: the demo's nodes, and many containers, have their own keys."""
    key = HostKey(host="10.0.0.1", port=port, key_type=kind, fingerprint="SHA256:1", line="")
    assert shown_key(key)["command"] == command


def test_what_nodes_lack_is_copied_on_the_users_word_and_the_nodes_checked_again(job: Job) -> None:
    checks, second = Checks(0, "10.0.0.1"), Checks(1, "10.0.0.2")
    lacks = (checks.ok("model"), second.wrong("model", "model_missing", "model.path"))
    nodes = Nodes(PreflightReport(checks=lacks, problems=(Problem(code="model_missing"),)), PreflightReport())
    nodes.let.set()
    session = session_of(nodes)
    session.check(job)
    assert rest(session).missing_for(job).ranks == (1,)
    session.copy(job)
    state = rest(session)
    assert (state.is_green_for(job), state.copied) == (True, (1, 2))
    assert [problem.code for problem in state.problems] == ["copy_left"]
    with pytest.raises(ProblemsError):
        session.copy(job)
