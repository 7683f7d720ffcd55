"""Two tabs, or a tab and a command line, request the same action of a run at the same moment. It happens once."""

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.job.job import Job
from backend.job.problems import ProblemsError
from backend.runs.controller import Controller
from backend.runs.launch.launch_lock import is_launching, launch_lock
from backend.runs.states import EventKind, RunState
from backend.runs.store import transitions
from tests.runs.conftest import RUN, Gang
from tests.runs.gangs import NODES, marked, steps_of, with_mode
from tests.waiting import WITHIN_S, wait_for


def _end(gang: Gang, *, save: bool) -> None:
    gang.store.write(lambda c: transitions.end(c, RUN, save=save, now=gang.clock.now))


def test_a_second_stop_of_a_run_that_waits_for_no_checkpoint_is_no_event(gang: Gang) -> None:
    _end(gang, save=False)
    _end(gang, save=False)
    assert gang.kinds().count("stop_requested") == 1
    assert "stop_forced" not in gang.kinds()


def test_of_two_stops_that_cut_a_checkpoint_short_one_is_told(gang: Gang) -> None:
    _end(gang, save=True)
    _end(gang, save=True)
    assert "stop_forced" not in gang.kinds()
    _end(gang, save=False)
    _end(gang, save=False)
    assert gang.kinds().count("stop_forced") == 1


def test_a_stop_of_a_run_that_is_ended_because_a_node_failed_is_no_event(gang: Gang) -> None:
    gang.add_event(EventKind.FAILING, 1)
    _end(gang, save=False)
    assert gang.kinds()[-1] == "failing"


def test_a_lock_that_was_let_go_while_it_was_waited_for_is_taken_where_all_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = os.open, []

    def open_and_lose(path: Any, *more: Any) -> int:
        opened.append(real(path, *more))
        if len(opened) == 1:
            os.unlink(path)  # The first launch is complete.
        return opened[-1]

    monkeypatch.setattr(os, "open", open_and_lose)
    with launch_lock(tmp_path, RUN):
        assert is_launching(tmp_path, RUN)
    assert not is_launching(tmp_path, RUN)


@pytest.mark.contract
@pytest.mark.e2e  # A whole gang takes seconds.
def test_two_processes_that_launch_stop_and_resume_at_once_do_each_once(
    open_controller: Callable[..., Controller], job: Job, home: Path
) -> None:
    first, second = open_controller(), open_controller()
    first.start()
    second.start()
    job = with_mode(job, "ok", steps=10_000)
    run, other = _both(lambda: first.launch(job, token="once"), lambda: second.launch(job, token="once"))
    assert run == other
    assert len(first.runs()) == 1
    wait_for(lambda: len(steps_of(first, run)) == NODES)
    assert _both(lambda: first.stop(run), lambda: second.stop(run)) == [None, None]
    assert first.wait(run, WITHIN_S) is RunState.STOPPED
    assert marked(home, run) == 0
    ends = _both(lambda: first.resume(run, checkpoint=0), lambda: second.resume(run, checkpoint=0, queue=False))
    assert sorted(ends, key=str) == [None, ["cannot_resume"]]
    assert first.snapshot(run).attempt == 2
    assert _both(lambda: first.stop(run), lambda: second.stop(run, save=True)) == [None, None]
    assert first.wait(run, WITHIN_S) is RunState.STOPPED
    assert marked(home, run) == 0
    counted = Counter(event.kind for event in first.snapshot(run).events)
    once_an_attempt = (EventKind.STARTING, EventKind.STARTED, EventKind.STOP_REQUESTED, EventKind.STOPPED)
    assert [counted[kind] for kind in once_an_attempt] == [2] * 4
    assert counted[EventKind.RESUMED] == 1


def _both(*acts: Callable[[], object]) -> list[Any]:
    """Run both at the same moment. Return their results, or the codes of their exceptions."""
    barrier = threading.Barrier(len(acts))
    ends: list[Any] = [None] * len(acts)

    def work(index: int) -> None:
        barrier.wait()
        try:
            ends[index] = acts[index]()
        except ProblemsError as error:
            ends[index] = [problem.code for problem in error.problems]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends
