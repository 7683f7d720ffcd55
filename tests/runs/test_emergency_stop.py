"""A store that cannot be opened: the database file has enough data to end a run on its nodes."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.main import main
from backend.job.job import Job
from backend.job.mapping import dump_job
from backend.job.problems import ProblemsError
from backend.runs.controller import Controller
from backend.runs.emergency_stop import find_run
from backend.runs.states import RunState
from backend.runs.store import run_store
from backend.runs.store.backup import back_up
from backend.runs.store.store import Store, StoreError
from tests.cluster.jobs import make_job
from tests.full_disk import full_disk
from tests.runs.gangs import NODES, marked, with_mode
from tests.waiting import WITHIN_S, wait_for

RUN = "20260101-120000-my-job-ab12"


def _add(store: Store, run: str) -> None:
    job = dump_job(make_job())
    store.write(lambda c: run_store.create_run(c, run, name="n", engine="e", job=job, addresses=[], time=1.0))


def _why(path: Path) -> StoreError:
    return StoreError("store_full", path, "no room")


def test_a_run_is_found_in_the_database_as_it_lies_there_with_its_log_and_in_its_copy(home: Path, store: Store) -> None:
    _add(store, RUN)
    back_up(store.path, 1e9)
    later = RUN.replace("ab12", "cd34")
    _add(store, later)
    # As a server that was killed leaves it: the newest stands in the log alone.
    killed = home / "killed"
    killed.mkdir()
    for name in ("megaboard.db", "megaboard.db-wal", "megaboard.db.spare"):
        shutil.copy(home / name, killed)
    path = killed / "megaboard.db"
    assert find_run(path, "cd34", None, _why(path)) == (later, make_job())
    before = sorted(os.listdir(killed))
    path.write_bytes(b"damaged")
    assert find_run(path, "ab12", None, _why(path)) == (RUN, make_job())
    assert sorted(os.listdir(killed)) == before, "nothing was written beside it"


def test_a_run_that_no_database_knows_wants_its_job_file_and_its_whole_id(tmp_path: Path) -> None:
    path = tmp_path / "megaboard.db"
    for arguments, job, codes in (
        ("my-job", None, ["store_full", "stop_needs_job"]),
        ("my-job", make_job(), ["store_full", "unknown_run"]),
        ("../../etc", make_job(), ["store_full", "unknown_run"]),
    ):
        with pytest.raises(ProblemsError) as caught:
            find_run(path, arguments, job, _why(path))
        assert [problem.code for problem in caught.value.problems] == codes
    assert find_run(path, RUN, make_job(), _why(path)) == (RUN, make_job())


@pytest.mark.e2e  # A whole gang takes seconds.
@pytest.mark.parametrize("trouble", ["full", "damaged"])
def test_a_stop_reaches_the_nodes_though_the_store_cannot_be_opened(
    home: Path,
    open_controller: Callable[..., Controller],
    job: Job,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(home))
    known_hosts = (home / "known_hosts").read_text()
    with full_disk(home) as disk:
        (home / "known_hosts").write_text(known_hosts)
        server = open_controller()
        run = server.launch(with_mode(job, "ok", steps=100_000))
        wait_for(lambda: (server.snapshot(run).step or 0) > 5)
        server.close()
        server._store.close()
        Store(home / "megaboard.db").close()  # Without another reader, SQLite removes its log and index.
        options = []
        if trouble == "full":
            disk.fill()
        else:
            (home / "megaboard.db").write_bytes(b"damaged" * 1000)
            # A spare of the job may have taken any rank: the nodes say which.
            first, *spares = job.cluster.hosts
            cluster = replace(job.cluster, nodes=1, hosts=(first,), spares=tuple(spares))
            (tmp_path / "job.yaml").write_text(dump_job(replace(job, cluster=cluster)))
            options = ["--job", str(tmp_path / "job.yaml")]
        with pytest.raises(StoreError):
            Store(home / "megaboard.db")
        assert main(["stop", run, *options]) == 1
        assert f"stopped on {NODES} of its {NODES} nodes" in " ".join(capsys.readouterr().err.split())
        assert marked_by_job(job, run) == 0
        if trouble == "full":
            disk.free()
            again = open_controller()
            again.start()
            assert again.wait(run, WITHIN_S) is RunState.STOPPED
            assert marked(home, run) == 0
            again.close()


def marked_by_job(job: Job, run: str) -> int:
    """Return the processes that run in the run's folders."""
    inside = f"/{run}/"
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_text())
        except OSError:
            continue
    return sum(inside in command for command in commands)
