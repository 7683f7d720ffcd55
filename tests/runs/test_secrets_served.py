"""A secret that one process gave to its launch stays out of what another process, which serves, collects and stores.

Over real sshd with the real supervisor: the token is masked on the node, by who knows it.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.job.job import Job
from backend.job.mapping import dump_job, parse_job
from backend.runs import redact
from backend.runs.controller import Controller
from backend.runs.states import RunState
from backend.runs.store import metrics
from backend.runs.store.metrics import FileKey
from backend.runs.store.store import Store
from tests.runs.gangs import ENGINE, stand_in_job, with_mode
from tests.waiting import WITHIN_S, wait_for

pytestmark = [pytest.mark.contract, pytest.mark.e2e]

TOKEN = "canary-of-no-known-shape-0123456789"
PYTHON = """\
[ "$1" = -m ] && echo "my token is $MY_TOKEN, and on"
PYTHONPATH={engine} exec {python} -S -B "$@"
"""


@pytest.fixture
def talkative_job(cluster: LocalNodes) -> Job:
    """Every rank prints its token, as careless programs do."""
    mapping = stand_in_job(cluster.folder, PYTHON.format(engine=ENGINE, python=sys.executable))
    job, problems = parse_job({**mapping, "cluster": cluster.cluster_mapping(f"{cluster.folder}/python")})
    assert job is not None, problems
    return with_mode(job, "ok", steps=100_000, step_s=0.05)


def test_a_server_that_was_never_told_the_secret_stores_no_log_that_shows_it(
    open_controller: Callable[..., Controller],
    talkative_job: Job,
    cluster: LocalNodes,
    home: Path,
    tmp_path: Path,
) -> None:
    server = open_controller()
    server.start()
    file = tmp_path / "job.yaml"
    file.write_text(dump_job(talkative_job))
    launched = subprocess.run(
        [sys.executable, "-m", "app.main", "--lang", "en", "launch", str(file), "--secret", "MY_TOKEN"],
        env={**os.environ, "MEGABOARD_HOME": str(home), "MY_TOKEN": TOKEN},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stdout + launched.stderr
    (run,) = [one.id for one in server.runs()]
    assert TOKEN not in redact._known_secrets.values, "this process must not know it"
    wait_for(lambda: all(b"my token is ***" in _log(home, run, rank) for rank in range(2)))
    server.stop(run)
    assert server.wait(run, WITHIN_S) is RunState.STOPPED
    assert [path for path in home.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()] == []
    logs = [path for path in (cluster.folder / "run" / run).rglob("*.log") if TOKEN.encode() in path.read_bytes()]
    assert logs == []


def _log(home: Path, run: str, rank: int) -> bytes:
    store = Store(home / "megaboard.db")
    try:
        with store.read() as connection:
            return metrics.log_tail(connection, FileKey(run=run, attempt=1, rank=rank, file="out.log"), size=1 << 20)[1]
    finally:
        store.close()
