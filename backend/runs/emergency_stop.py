"""Stops a run while the store cannot be opened: the disk is full, the file is damaged, or it is of a newer version.

The run's job is read from what this machine has: the database file, its backup, or a job file that the user names. The
nodes report the attempts: their run folders hold what a stop needs. If the store can be read but not written,
supervise/unrecorded_stop.py stops the run.
"""

import json
import posixpath
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from backend.cluster.inventory.software import outside
from backend.cluster.node import Node
from backend.cluster.node_group import try_all
from backend.cluster.preflight.lock import lock_path
from backend.job.job import Job
from backend.job.launch_rules import environment_of, with_spares
from backend.job.problems import Problem, ProblemsError
from backend.runs.connections import Connections
from backend.runs.launch.launch import STOP_CALL_S
from backend.runs.launch.slurm_stop import SLURM_STOP_S
from backend.runs.records import NodeRecord
from backend.runs.store.backup import backup_path
from backend.runs.store.run_store import run_job
from backend.runs.store.store import StoreError
from backend.runs.supervise.gang_rules import Timing
from backend.runs.supervise.unrecorded_stop import end_on_node, what_was_done

RUN_ID = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9._-]{1,64}-[0-9a-f]{4}")
FOLDER = re.compile(r"/(?P<run>[^/]+)/\d+/node(?P<rank>\d+)$")
LIST_S = 20.0
LIST = (
    'cd "$0/$1" 2>/dev/null && for file in */node*/supervisor.py; do folder="${file%/*}";'
    ' grep -qF "$2" "$folder/spec.json" 2>/dev/null && echo "$PWD/$folder"; done; :'
)
"""Lists the folders of attempts whose spec.json has a text, also of attempts that ended."""


def find_run(path: Path, requested: str, job: Job | None, why: StoreError) -> tuple[str, Job]:
    """Return the id of the requested run and its job. `requested`: the id or a part of it; `job`: the user's job file.

    Raises ProblemsError: ambiguous_run, unknown_run; `why` with stop_needs_job when no database has the run.
    """
    jobs = _jobs(path, backup_path(path))
    matches = [run for run in jobs if run == requested] or [run for run in jobs if requested and requested in run]
    if len(matches) > 1:
        raise ProblemsError([Problem(code="ambiguous_run", values={"given": requested, "runs": matches})])
    if matches:
        return matches[0], jobs[matches[0]]
    if job is not None and RUN_ID.fullmatch(requested):
        return requested, job
    code = "stop_needs_job" if job is None else "unknown_run"
    raise ProblemsError([why.problem, Problem(code=code, field="--job", values={"run": requested})])


def stop(run: str, job: Job, connections: Connections, *, save: bool, why: StoreError) -> ProblemsError:
    """Stop every attempt of the run on its nodes; return the error to raise: what was done, and what failed.

    With `save`, the ranks save a checkpoint and then exit. A run without attempts on its nodes is not changed, and the
    returned error is `why`.
    """
    # A spare may have the rank of any node. With a scheduler, a stop of node 0 ends the job on all nodes.
    job = with_spares(job)
    hosts = job.cluster.hosts if job.cluster.scheduler is None else job.cluster.connected_hosts[:1]

    def end(number: int, _: object) -> int:
        node = connections.get(hosts[number])
        records = _records(job, run, number, node)
        for record in records:
            attempt = int(posixpath.basename(posixpath.dirname(record.folder)))
            end_on_node(job, run, attempt, record, node, records=[record], save=save, grace_s=Timing().grace_s)
        return len(records)

    stopped, failures = try_all(hosts, end, SLURM_STOP_S if job.cluster.scheduler else STOP_CALL_S)
    if not failures and not any(stopped.values()):
        return why
    return what_was_done(run, sum(map(bool, stopped.values())), failures, save=save, why=why)


def _records(job: Job, run: str, number: int, node: Node) -> list[NodeRecord]:
    """Return the attempts on a host, the spares after the nodes, with the fields that a stop needs."""
    environment = environment_of(job, number)
    if environment is None:
        raise ProblemsError([Problem(code="no_environment", values={"name": job.traits.environment})])
    environment = outside(environment)
    root = job.cluster.run_root
    command = ["sh", "-c", LIST, root, run, _own_line(job, number)]
    if root.startswith("~/"):
        command = ["sh", "-c", 'exec sh -c "$0" "$HOME/$1" "$2" "$3"', LIST, root[2:], run, _own_line(job, number)]
    matches = [FOLDER.search(line) for line in node.run(command, timeout_s=LIST_S).out.splitlines()]
    return [
        NodeRecord(
            rank=int(match["rank"]),
            address=node.name,
            folder=match.string,
            python=environment.python,
            setup=environment.setup,
            mark="",
        )
        for match in matches
        if match and match["run"] == run
    ]


def _own_line(job: Job, number: int) -> str:
    """Return a text that spec.json has only in the folders of this host. Hosts may share the run root."""
    if job.cluster.scheduler is not None:
        return '"node_rank": 0,'
    return json.dumps(lock_path("", job.cluster.hosts[number]))[1:]


def _jobs(*databases: Path) -> Mapping[str, Job]:
    """Return run -> its job, from the databases that can be read. The first database with a run counts."""
    jobs: dict[str, Job] = {}
    for path in reversed(databases):
        for readable in (_without_log, _with_log):
            with suppress(sqlite3.Error, OSError, ProblemsError), readable(path) as connection:
                jobs |= {run: run_job(text) for run, text in connection.execute("SELECT id, job FROM runs")}
                for (run,) in connection.execute("SELECT run FROM deleted_runs"):
                    jobs.pop(run, None)  # the backup may still have it
    return jobs


@contextmanager
def _without_log(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database without its log, so that no file has to be written beside it."""
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _with_log(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of the database and the log of a killed server, in a folder with room for both."""
    log = path.with_name(f"{path.name}-wal")
    if not log.stat().st_size:
        raise FileNotFoundError(log)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for file in (path, log):
            shutil.copy(file, folder)
        connection = sqlite3.connect(copy)
        try:
            yield connection
        finally:
            connection.close()
