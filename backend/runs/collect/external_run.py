"""An external run: a training that a user's own script started. Its logs and its nodes are read and shown like a run.

It has no supervisor, no gang monitor and no claim on its nodes. Megaboard writes nothing on them and cannot stop the
training.
"""

import logging
import posixpath
import re
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from backend.cluster.inventory.heartbeat import read_heartbeat
from backend.cluster.node import Node, sftp_path
from backend.cluster.typed_json import read
from backend.job.job import Job
from backend.job.mapping import dump_job, parse_job
from backend.job.problems import Problem, ProblemsError, errors
from backend.runs.collect.collector import Collector, Polled
from backend.runs.collect.node_files import RecordFile
from backend.runs.collect.node_records import Heartbeat
from backend.runs.collect.poller import LONGEST_BACK_OFF_S, Poller, record_connection, was_away
from backend.runs.connections import Connections
from backend.runs.records import NodeRecord
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.store import Store
from backend.runs.view.progress import WATCHED

_log = logging.getLogger(__name__)

POLL_S = 2.0
HEARTBEAT_EVERY_S = 10.0
"""Interval between two reads of a node's GPUs. Every read is a command on the node."""
LIST_S = 30.0
LIST_BYTES = 16 << 20
"""Limit for the list of file names: a folder may hold 100,000 files."""
TRAINER_LOG = "trainer_log.jsonl"
LOGS = re.compile(r".*\.log|.*\.txt|.*\.out")
MOST_LOGS = 8
EVENTS = "events.out.tfevents."
EVENTS_DEPTH = 3
"""The transformers library writes event files into `runs/<date>_<host>/` of the output folder."""
MOST_EVENTS = 8
CLOSE_S = 5.0


def watched_job(hosts: Sequence[Mapping[str, Any]], folder: str) -> Job:
    """Return the job of an external run: nodes, output folder, and the mark that it is external.

    Raises ProblemsError.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", posixpath.basename(folder.rstrip("/"))).strip(".-")[:40] or "watched"
    cluster = {"gpu": "cpu", "nodes": len(hosts), "gpus_per_node": 1, "hosts": list(hosts)}
    job, problems = parse_job({"name": name, "cluster": cluster, "training": {"output_dir": folder}, WATCHED: True})
    if job is None:
        raise ProblemsError(errors(problems))
    return job


def find_logs(node: Node, folder: str, log: str | None) -> list[str]:
    """Return the files in the folder that can be read; `log` names one more file.

    Raises ProblemsError(nothing_to_watch).
    """
    listed = node.run(["ls", "-1p", "--", folder], timeout_s=LIST_S, max_bytes=LIST_BYTES)
    names = [name for name in listed.out.splitlines() if not name.endswith("/")]
    logs = [name for name in names if LOGS.fullmatch(name)][:MOST_LOGS]
    files = [*(name for name in names if name == TRAINER_LOG), *logs, *_find_events(node, folder)]
    if log and node.exists(posixpath.join(folder, log)):
        files.append(log)
    if not files or (log and log not in files):
        values = {"folder": folder, "file": log or TRAINER_LOG}
        raise ProblemsError([Problem(code="nothing_to_watch", node=node.name, values=values)])
    return list(dict.fromkeys(files))


def _find_events(node: Node, folder: str) -> list[str]:
    """Return the newest event files of TensorBoard in the folder. Their names begin with the time of their start."""
    search = ["find", f"{folder}/.", "-maxdepth", str(EVENTS_DEPTH), "-type", "f", "-name", f"{EVENTS}*"]
    paths = node.run(search, timeout_s=LIST_S, max_bytes=LIST_BYTES).out.splitlines()
    inside = [path.removeprefix(f"{folder}/./") for path in paths if path.startswith(f"{folder}/./")]
    return sorted(inside, key=posixpath.basename)[-MOST_EVENTS:]


def register(connection: sqlite3.Connection, run: str, job: Job, files: Sequence[str], time: float) -> None:
    """Record the training as a run in state watched. Only its files are known."""
    columns = "(id, name, engine, job, created)"
    values = (run, job.name, WATCHED, dump_job(job), time)
    connection.execute(f"INSERT INTO runs {columns} VALUES (?, ?, ?, ?, ?)", values)  # noqa: S608
    folder = folder_of(job)
    nodes = [
        NodeRecord(rank=rank, address=host.name, folder=folder, python="", mark="")
        for rank, host in enumerate(job.cluster.hosts)
    ]
    attempts.create(connection, run, 1, master=("", 0), rendered={}, nodes=nodes, time=time)
    run_store.append(connection, run, EventKind.WATCHED, time=time, detail={"files": list(files)})


def folder_of(job: Job) -> str:
    """Return the output folder as SFTP and commands resolve it, from the home folder of the login user."""
    return sftp_path(job.training.output_dir or "/")


def sources_of(files: Sequence[str]) -> list[RecordFile]:
    """Return how each file is read. Megatron's lines may be in any log."""
    return [RecordFile(file=name, kind=_kind_of(name)) for name in files]


def _kind_of(name: str) -> Literal["trainer_log", "tensorboard", "megatron_log"]:
    if name == TRAINER_LOG:
        return "trainer_log"
    return "tensorboard" if posixpath.basename(name).startswith(EVENTS) else "megatron_log"


class NodeReader:
    """Polls one node: its current load, and on the first node also the logs. It has the interface of poller.Reader."""

    def __init__(
        self, store: Store, run: str, record: NodeRecord, files: Sequence[str], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._run = run
        self._record = record
        self._clock = clock
        self._collector = Collector(store, run, 1, record, (), clock, external_sources=sources_of(files))
        self._next_heartbeat = 0.0

    def poll(self, node: Node) -> Polled:
        """Read and store new records once. Raises NodeError and StoreError."""
        polled = self._collector.poll(node)
        now = self._clock()
        if now < self._next_heartbeat:
            return polled
        self._next_heartbeat = now + HEARTBEAT_EVERY_S
        beat, _ = read(Heartbeat, read_heartbeat(node, self._record.folder))
        if beat is None:
            return polled
        self._store.write(lambda c: metrics.add_heartbeats(c, self._run, 1, self._record.rank, [beat], now))
        return Polled(heartbeat=True, more=polled.more, ended=False)


class WatchOnly:
    """The threads that read one external run. Call start() once. They end with the monitoring, or at close()."""

    def __init__(
        self,
        store: Store,
        connections: Connections,
        run: str,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._run = run
        self._closing = threading.Event()
        self.over = threading.Event()
        with store.read() as connection:
            job = run_store.job_of(connection, run)
            records = attempts.nodes(connection, run, 1)
            history = run_store.events(connection, run)
            files = history[0].detail["files"]

        def poller(record: NodeRecord) -> Poller:
            reader = NodeReader(store, run, record, files if record.rank == 0 else (), clock)
            host = job.cluster.hosts[record.rank]
            return Poller(
                reader,
                lambda: connections.get(host),
                lambda error: record_connection(store, run, 1, record.rank, error, clock()),
                monotonic=monotonic,
                poll_s=POLL_S,
                was_away=was_away(history, 1, record.rank),
            )

        self._threads = [
            threading.Thread(target=self._poll, args=(poller(record),), name=f"watch {run} {record.rank}", daemon=True)
            for record in records
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Check after a new event whether the run is still monitored."""
        with self._store.read() as connection:
            if run_store.state_of(connection, self._run) is not RunState.WATCHED:
                self.over.set()
                self._closing.set()

    def close(self) -> None:
        """Stop the threads."""
        self._closing.set()
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _poll(self, poller: Poller) -> None:
        while not self._closing.is_set():
            try:
                delay = poller.step()
                self.wake()
            except Exception:  # the edge of a thread: one strange file must not end the watch of a node
                _log.exception("watching %s", self._run)
                delay = LONGEST_BACK_OFF_S
            self._closing.wait(delay)
