"""Later attempts and the queue: whole gangs over real sshd, with a stand-in trainer that saves.

Only whole runs show that the parts agree: the preflight after the end of a gang, the checkpoint for the engine, and
that no run starts twice.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from app.main import main
from backend.job.job import Job
from backend.job.mapping import dump_job, with_values
from backend.job.problems import ProblemsError
from backend.runs.controller import Controller
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, metrics
from backend.runs.store.store import Store
from backend.runs.supervise import restart
from tests.runs.gangs import NODES, marked, with_mode
from tests.waiting import WITHIN_S, wait_for

pytestmark = [pytest.mark.contract, pytest.mark.e2e]


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "FIRST_WAIT_S", 0.2)


def _trail(home: Path, run: str) -> list[tuple[int, int]]:
    store = Store(home / "megaboard.db")
    with store.read() as connection:
        points = metrics.trail(connection, run, attempts.newest(connection, run), count=10_000)
    store.close()
    return [(point.attempt, point.step) for point in points]


def _on(job: Job, *ranks: int, name: str = "job") -> Job:
    """Return the job on only some of the nodes."""
    hosts = tuple(job.cluster.hosts[rank] for rank in ranks)
    return replace(job, name=name, cluster=replace(job.cluster, nodes=len(ranks), hosts=hosts))


def test_a_killed_rank_restarts_the_gang_from_its_checkpoint_without_anybody(
    open_controller: Callable[..., Controller], job: Job, home: Path
) -> None:
    controller = open_controller()
    controller.start()
    run = controller.launch(with_mode(job, "killed@1", save=3), restarts=1)
    assert controller.wait(run, WITHIN_S) is RunState.FINISHED
    shown = controller.snapshot(run)
    assert (shown.attempt, shown.checkpoint_step, shown.step, shown.restarts, shown.cause) == (2, 6, 20, 1, None)
    assert _trail(home, run) == [(1, step) for step in range(1, 7)] + [(2, step) for step in range(7, 21)]
    (message,) = [event for event in shown.events if event.kind is EventKind.RESTARTING]
    assert (message.detail["problem"]["code"], message.detail["number"], message.detail["of"]) == ("killed", 1, 1)
    assert marked(home, run) == 0


def test_a_failed_run_is_resumed_where_it_is_complete_and_nothing_is_recorded_when_it_is_not(
    controller: Controller, job: Job, home: Path, cluster: LocalNodes
) -> None:
    run = controller.launch(with_mode(job, "killed@1", save=3))
    assert controller.wait(run, WITHIN_S) is RunState.FAILED
    results = cluster.folder / "out" / run
    (results / "checkpoint-6/rng_state_1.pth").unlink()
    checkpoints = controller.checkpoints(run)
    assert (checkpoints.steps[:2], checkpoints.newest) == ((3, 6), 3)
    assert (checkpoints.flaws[6].rank, checkpoints.flaws[6].file) == (1, "rng_state_1.pth")
    before = len(controller.snapshot(run).events)
    for step, code in ((6, "checkpoint_incomplete"), (4, "checkpoint_missing")):
        with pytest.raises(ProblemsError) as caught:
            controller.resume(run, checkpoint=step)
        assert caught.value.problems[0].code == code
    assert len(controller.snapshot(run).events) == before
    controller.resume(run)
    assert controller.wait(run, WITHIN_S) is RunState.FINISHED
    assert (controller.snapshot(run).checkpoint_step, _trail(home, run)[3]) == (3, (2, 4))
    assert (results / "before-attempt-2-checkpoint-6").is_dir()
    with pytest.raises(ProblemsError) as caught:
        controller.resume(run)
    assert [(p.code, p.values["state"]) for p in caught.value.problems] == [("cannot_resume", "finished")]


def test_without_a_checkpoint_a_resume_is_refused_and_the_start_must_be_asked_for(
    controller: Controller, job: Job, home: Path
) -> None:
    run = controller.launch(with_mode(job, "killed@1"))
    assert controller.wait(run, WITHIN_S) is RunState.FAILED
    with pytest.raises(ProblemsError) as caught:
        controller.resume(run)
    assert caught.value.problems[0].code == "no_checkpoint"
    controller.resume(run, checkpoint=0)
    assert controller.wait(run, WITHIN_S) is RunState.FINISHED
    assert _trail(home, run) == [(2, step) for step in range(1, 21)]


def test_an_edited_job_begins_with_another_runs_checkpoint_and_what_cannot_load_it_is_refused_before(
    controller: Controller, job: Job, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = controller.launch(with_mode(job, "killed@1", save=3))
    assert controller.wait(first, WITHIN_S) is RunState.FAILED
    other = replace(with_mode(job, "ok"), engine="llamafactory-zero2")
    with pytest.raises(ProblemsError) as caught:
        controller.launch(other, source=(first, None))
    assert [problem.code for problem in caught.value.problems] == ["checkpoint_of_engine"]
    monkeypatch.setenv("MEGABOARD_HOME", str(home))
    for the_job, status in ((other, 1), (job, 0)):
        (home / "job.yaml").write_text(dump_job(the_job))
        assert main(["check", str(home / "job.yaml"), "--from", first]) == status
    assert len(controller.runs()) == 1
    edited = with_mode(with_values(job, {"training.learning_rate": 1e-6}), "killed@1", steps=10)
    run = controller.launch(edited, source=(first, 3), restarts=1)
    assert controller.wait(run, WITHIN_S, takes_turn=True) is RunState.FINISHED
    shown = controller.snapshot(run)
    assert (shown.attempt, shown.checkpoint_step) == (2, 3), "it saved none of its own"
    assert _trail(home, run) == [(2, step) for step in range(4, 11)]
    assert controller.snapshot(first).state is RunState.FAILED


def test_two_that_resume_at_once_start_one_attempt(
    open_controller: Callable[..., Controller], job: Job, home: Path
) -> None:
    controllers = [open_controller(), open_controller()]
    run = controllers[0].launch(with_mode(job, "killed@1", save=3))
    assert controllers[0].wait(run, WITHIN_S) is RunState.FAILED
    refusals: list[str] = []

    def resume(controller: Controller) -> None:
        try:
            controller.resume(run)
        except ProblemsError as error:
            refusals.append(error.problems[0].code)

    threads = [threading.Thread(target=resume, args=(one_controller,)) for one_controller in controllers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals == ["cannot_resume"]
    assert controllers[1].wait(run, WITHIN_S) is RunState.FINISHED
    assert controllers[0].snapshot(run).attempt == 2


def test_a_token_launches_once_however_many_press(
    open_controller: Callable[..., Controller], job: Job, home: Path
) -> None:
    controllers = [open_controller(), open_controller()]
    runs: list[str] = []
    threads = [
        threading.Thread(target=lambda one=one: runs.append(one.launch(with_mode(job, "ok"), token="the-button")))
        for one in controllers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 2
    assert len(set(runs)) == 1
    assert [one.id for one in controllers[0].runs()] == runs[:1]
    assert controllers[0].wait(runs[0], 30) is RunState.FINISHED
    assert controllers[0].launch(job, queue=True, token="the-button") == runs[0]


def test_queued_runs_start_side_by_side_where_they_share_no_node_and_else_in_their_order(
    open_controller: Callable[..., Controller], job: Job, home: Path
) -> None:
    """Two servers of one home start runs at once. A third server, started later, finds the queue."""
    waiting = open_controller()
    long = with_mode(job, "ok", steps=10_000)
    both = waiting.launch(_on(with_mode(job, "ok"), 0, 1, name="both"), queue=True)
    left, right = (waiting.launch(_on(long, rank, name=f"n{rank}"), queue=True) for rank in range(NODES))
    last = waiting.launch(_on(with_mode(job, "ok"), 1, name="last"), queue=True)
    cancelled = waiting.launch(_on(long, 0, name="cancelled"), queue=True)
    assert {queued.state for queued in waiting.runs()} == {RunState.QUEUED}
    waiting.move(both, "last")
    waiting.stop(cancelled)
    assert waiting.snapshot(cancelled).state is RunState.STOPPED
    assert [waiting.snapshot(run).queue_place for run in (left, right, last, both)] == [1, 2, 3, 4]
    servers = [open_controller(), open_controller()]
    for server in servers:
        server.start()
    wait_for(lambda: [waiting.snapshot(run).state for run in (left, right)] == [RunState.RUNNING] * 2)
    assert [waiting.snapshot(run).queue_place for run in (last, both)] == [1, 2]
    waiting.stop(right)
    wait_for(lambda: waiting.snapshot(last).state is RunState.FINISHED)
    assert waiting.snapshot(both).state is RunState.QUEUED, "its other node is busy"
    waiting.stop(left)
    wait_for(lambda: waiting.snapshot(both).state is RunState.FINISHED)
    assert [waiting.snapshot(run).attempt for run in (left, right, last, both, cancelled)] == [1, 1, 1, 1, 0]
    assert sum(marked(home, run) for run in (left, right, last, both)) == 0


def test_a_queued_run_that_a_check_refused_says_why_and_is_put_back_at_the_command_line(
    controller: Controller, job: Job, home: Path, cluster: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(home))
    model, away = cluster.folder / "model", cluster.folder / "away"
    run = controller.launch(with_mode(job, "ok"), queue=True)
    model.rename(away)
    try:
        assert controller.wait(run, WITHIN_S, takes_turn=True) is RunState.FAILED
    finally:
        away.rename(model)
    (line,) = controller.runs()
    assert line.why is not None
    assert (line.why.code, line.has_begun) == ("model_missing", False)
    assert main(["queue", run]) == 0
    assert controller.snapshot(run).queue_place == 1
    assert controller.wait(run, WITHIN_S, takes_turn=True) is RunState.FINISHED
