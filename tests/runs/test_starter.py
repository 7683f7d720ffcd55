"""A start during another action on the same run."""

from dataclasses import replace

import pytest

from backend.job.mapping import dump_job
from backend.job.problems import ProblemsError
from backend.runs.launch import launch
from backend.runs.states import EventKind
from backend.runs.store import attempts, run_store, transitions
from backend.runs.store.store import Store
from tests.runs.test_launch import attempt, job

__all__ = ["attempt", "job"]


def test_what_was_stopped_while_its_nodes_were_checked_is_not_started(attempt: launch.Attempt, store: Store) -> None:
    job = dump_job(attempt.job)
    store.write(lambda c: run_store.create_run(c, attempt.run, name="n", engine="e", job=job, addresses=[], time=1.0))
    store.write(lambda c: run_store.append(c, attempt.run, EventKind.PREFLIGHT, time=1.0))
    store.write(lambda c: transitions.end(c, attempt.run, save=False, now=2.0))
    with pytest.raises(ProblemsError, match="launch_stopped"):
        launch.record_attempt(store, attempt, 3.0)
    with store.read() as connection:
        assert attempts.newest(connection, attempt.run) == 0
        assert attempts.nodes(connection, attempt.run, 1) == ()


def test_the_own_names_of_the_nodes_are_stored_with_the_attempt(attempt: launch.Attempt, store: Store) -> None:
    job = dump_job(attempt.job)
    store.write(lambda c: run_store.create_run(c, attempt.run, name="n", engine="e", job=job, addresses=[], time=1.0))
    store.write(lambda c: run_store.append(c, attempt.run, EventKind.PREFLIGHT, time=1.0))
    launch.record_attempt(store, replace(attempt, hostnames={0: "gpu-17", 1: "gpu-18"}), 3.0)
    with store.read() as connection:
        assert attempts.hostnames(connection, attempt.run, 1) == {0: "gpu-17", 1: "gpu-18"}
        assert attempts.hostnames(connection, attempt.run, 2) == {}
