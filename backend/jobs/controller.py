"""The one door to runs: preflight, launch, stop, and what the page and the command line show of them.

Reading goes to the store alone, so it is the same in every process. A controller that was start()ed watches every
unfinished run, those launched or left behind by other processes too.
"""

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from backend.cluster.data_size import DataSize
from backend.cluster.group import GroupError
from backend.cluster.hostkeys import HostKey, KnownHosts
from backend.cluster.link import display_name
from backend.cluster.node import Node
from backend.cluster.ssh import connect as connect_by_ssh
from backend.engines import check_engine, render
from backend.job.job import Calibration, Host, Job
from backend.job.launch_rules import check_launch, check_nodes
from backend.job.mapping import MAXIMUM_TEXT, dump_job
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check
from backend.jobs import launch as launching
from backend.jobs import ledger, series, snapshot
from backend.jobs import look as looking
from backend.jobs.calibrate import RunMeasured, measure_run
from backend.jobs.checkup import Meeting, PreflightReport, examine, meet
from backend.jobs.connections import Connections
from backend.jobs.diagnose import readable
from backend.jobs.launchlock import LaunchLock, is_launching
from backend.jobs.lead import Timing
from backend.jobs.look import Look, refuse_without
from backend.jobs.prepare import prepared
from backend.jobs.records import Point, RunSnapshot, RunSummary, problem_to_json
from backend.jobs.series import FileKey
from backend.jobs.speed import Measurement, measure
from backend.jobs.states import EventKind, RunState
from backend.jobs.store import Store, StoreError
from backend.jobs.watch import Watch

_log = logging.getLogger(__name__)

LOOK_FOR_RUNS_S = 2.0
"""Between two looks for runs that another process launched."""
LAUNCHING_S = 0.2
"""Between two looks whether another process is done launching."""
LOG_BYTES = 64 << 10
MEASURED_STEPS = 500
"""The newest steps that a calibration looks at."""


class Controller:
    """Runs of one home folder. Safe for many threads; several controllers of one home do no harm.

    `connect(host, known_hosts)` opens a node; `audit(action, **fields)` records what changes something, before it does.
    """

    def __init__(
        self,
        home: Path,
        store: Store,
        known_hosts: KnownHosts,
        *,
        connect: Callable[[Host, KnownHosts], Node] = connect_by_ssh,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        audit: Callable[..., None] = lambda action, **fields: None,
        timing: Timing | None = None,
    ) -> None:
        self._home = home
        self._store = store
        self._known_hosts = known_hosts
        self._connections = Connections(lambda host: connect(host, known_hosts))
        self._clock = clock
        self._monotonic = monotonic
        self._audit = audit
        self._timing = timing or Timing()
        self._watches: dict[str, Watch] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._finder = threading.Thread(target=self._find_runs, name="find runs", daemon=True)

    def start(self) -> None:
        """Watch every unfinished run from now on."""
        self._finder.start()

    def close(self) -> None:
        """Let go of everything; runs go on."""
        self._closing.set()
        if self._finder.is_alive():
            self._finder.join()
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.close()
        self._connections.close()

    def preflight(self, job: Job) -> PreflightReport:
        """Reach all nodes, read what they are, check what a launch needs; nothing is changed on them.

        ProblemsError when the job alone is not ready to be launched.
        """
        check_alone(job)
        return examine(job, meet(job, self._connections), launching.candidate_ports(job))

    def model_config(self, job: Job, limit: int) -> Look[bytes]:
        """config.json of the model's folder, at most `limit` bytes; ProblemsError without hosts or a folder."""
        refuse_without(job, "cluster.hosts", "model.path")
        return looking.model_config(job, meet(job, self._connections), limit)

    def host_memory(self, job: Job) -> Look[float]:
        """GiB of memory of every node; ProblemsError without hosts."""
        refuse_without(job, "cluster.hosts")
        return looking.host_memory(meet(job, self._connections))

    def data_size(self, job: Job) -> Look[DataSize]:
        """How many samples the job's data sets have, read on a node; ProblemsError without hosts or data sets."""
        refuse_without(job, "cluster.hosts", "training.dataset", "training.dataset_dir")
        return looking.data_size(job, meet(job, self._connections))

    def measure_speed(self, job: Job) -> Measurement:
        """What the job's nodes reach; nothing of it stays on them. ProblemsError when it cannot be measured."""
        if found := errors(check_nodes(job)):
            raise ProblemsError(found)
        run = launching.new_run_id(replace(job, name="speed"), self._clock())
        self._audit("measure_speed", run=run, nodes=[host.address for host in job.cluster.hosts])
        return measure(job, meet(job, self._connections), run)

    def accept_host_keys(self, keys: Iterable[HostKey]) -> None:
        """Remember host keys that the user has confirmed."""
        for key in keys:
            self._audit("accept_host_key", host=key.host, port=key.port, fingerprint=key.fingerprint)
            self._known_hosts.accept(key)

    def launch(self, job: Job) -> str:
        """Start a run and return its id when all supervisors have reported; ProblemsError when it cannot be.

        A refused launch leaves no process behind; from preflight on it stays in the history as failed.
        """
        check_alone(job)
        meeting = meet(job, self._connections)
        if meeting.failures:
            raise ProblemsError(meeting.problems)
        run = launching.new_run_id(job, self._clock())
        self._audit("launch", run=run, job=job.name, nodes=[host.address for host in job.cluster.hosts])
        with LaunchLock(self._home, run):
            self._store.write(lambda connection: self._create(connection, run, job))
            failure: BaseException | None = None
            try:
                self._launch(run, job, meeting)
            except BaseException as error:  # Ctrl-C too: what was started is stopped before it is raised again
                failure = error
                self._end_launch(run, failure)
        watch = self._attach(run)
        if failure is not None:
            watch.over.wait(self._timing.stop_deadline_s)
            raise failure
        return run

    def stop(self, run_id: str, *, save: bool = False) -> None:
        """Ask for the end of a run, with a checkpoint or at once; returns when that is recorded.

        The nodes prove in the events and in the snapshot that nothing is left. A second stop without `save` cuts a
        pending checkpoint short. ProblemsError: unknown_run, run_ended.
        """
        self._audit("stop", run=run_id, save=save)

        def request(connection: sqlite3.Connection) -> None:
            ledger.run_row(connection, run_id)
            now, attempt = self._clock(), ledger.newest_attempt(connection, run_id)
            detail = {"save": save}
            if ledger.append(connection, run_id, EventKind.STOP_REQUESTED, time=now, attempt=attempt, detail=detail):
                return
            if ledger.state_of(connection, run_id) is not RunState.STOPPING:
                raise ProblemsError([Problem(code="run_ended", values={"run": run_id})])
            if not save:
                ledger.append(connection, run_id, EventKind.STOP_FORCED, time=now, attempt=attempt)

        self._store.write(request)
        if not is_launching(self._home, run_id):
            self._attach(run_id).wake()

    def wait(self, run_id: str, timeout_s: float | None = None) -> RunState:
        """Wait for the end of a run, watching it meanwhile; the state it is in then."""
        deadline = self._monotonic() + (math.inf if timeout_s is None else timeout_s)
        while not self.snapshot(run_id).state.is_final and (left := deadline - self._monotonic()) > 0:
            if is_launching(self._home, run_id):
                self._closing.wait(min(left, LAUNCHING_S))
            else:
                self._attach(run_id).over.wait(None if timeout_s is None else left)
        return self.snapshot(run_id).state

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Everything about one run; ProblemsError(unknown_run)."""
        with self._store.read() as connection:
            return snapshot.snapshot(connection, run_id, self._clock())

    def runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        with self._store.read() as connection:
            return snapshot.summaries(connection)

    def points(self, run_id: str, after: int = 0, rank: int | None = 0) -> list[Point]:
        """Steps of one global rank (None: of all) whose `seq` lies behind `after`."""
        with self._store.read() as connection:
            return series.points(connection, run_id, rank=rank, after=after)

    def measured(self, run_id: str, known: Calibration | None = None) -> tuple[Job, RunMeasured]:
        """A run's job and what its newest attempt says about estimates; ProblemsError(unknown_run).

        `known`: what is known of its cluster now, in place of what the job was launched with.
        """
        with self._store.read() as connection:
            job = snapshot.run_job(ledger.run_row(connection, run_id)["job"])
            attempt = ledger.newest_attempt(connection, run_id)
            steps = series.newest_points(connection, run_id, attempt, count=MEASURED_STEPS)
            newest = series.newest_of_ranks(connection, run_id, attempt, ranks=job.world_size)
        if known is not None:
            job = replace(job, cluster=replace(job.cluster, calibration=known))
        return job, measure_run(job, run_id, steps, newest)

    def log(self, run_id: str, node_rank: int, file: str, *, size: int = LOG_BYTES, before: int | None = None) -> str:
        """The newest `size` bytes of a log of a node, or those that end at an offset, as readable text."""
        with self._store.read() as connection:
            attempt = ledger.newest_attempt(connection, run_id)
            key = FileKey(run=run_id, attempt=attempt, rank=node_rank, file=file)
            return readable(series.log_tail(connection, key, size=size, before=before)[1])

    def _create(self, connection: sqlite3.Connection, run: str, job: Job) -> None:
        addresses = [display_name(host) for host in job.cluster.hosts]
        text, now = dump_job(job), self._clock()
        ledger.create_run(connection, run, name=job.name, engine=job.engine, job=text, addresses=addresses, time=now)
        ledger.append(connection, run, EventKind.PREFLIGHT, time=now)

    def _launch(self, run: str, job: Job, meeting: Meeting) -> None:
        """Preflight, write down, start. Raises ProblemsError unless every supervisor runs."""
        report = examine(job, meeting, launching.candidate_ports(job))
        if report.problems:
            raise ProblemsError(report.problems)
        place = launching.make_place(job, run, 1, report.facts, report.port)
        attempt = launching.Attempt(
            run=run,
            number=1,
            job=job,
            place=place,
            rendered=prepared(job, render(job, place), place, meeting.nodes, report.facts),
            records=launching.make_records(job, place, report.facts),
            grace_s=self._timing.grace_s,
        )
        launching.record_attempt(self._store, attempt, self._clock())
        try:
            launching.start_all(attempt, meeting.nodes, lambda *told: self._tell(run, *told))
        except GroupError as error:
            raise ProblemsError(error.problems) from error
        self._tell(run, EventKind.STARTED)

    def _end_launch(self, run: str, failure: BaseException) -> None:
        """What was started is stopped by the watch that follows; nothing was, when there is no attempt yet."""
        interrupted = Problem(code="launch_interrupted")
        problem = failure.problems[0] if isinstance(failure, ProblemsError) else interrupted
        detail = {"problem": problem_to_json(problem)}
        with self._store.read() as connection:
            records = ledger.nodes(connection, run, 1)
        rank = next((record.rank for record in records if record.address == problem.node), None)
        self._tell(run, EventKind.FAILING, rank, detail)

    def _tell(
        self, run: str, kind: EventKind, rank: int | None = None, detail: Mapping[str, object] | None = None
    ) -> bool:
        return self._store.write(
            lambda connection: ledger.append(connection, run, kind, time=self._clock(), rank=rank, detail=detail)
        )

    def _attach(self, run: str) -> Watch:
        with self._lock:
            self._watches = {key: one for key, one in self._watches.items() if not one.over.is_set()}
            watch = self._watches.get(run)
            if watch is None:
                watch = Watch(
                    self._store,
                    self._connections,
                    self._home,
                    run,
                    clock=self._clock,
                    monotonic=self._monotonic,
                    timing=self._timing,
                )
                self._watches[run] = watch
                watch.start()
            return watch

    def _find_runs(self) -> None:
        while not self._closing.is_set():
            try:
                with self._store.read() as connection:
                    unfinished = ledger.unfinished_runs(connection)
            except StoreError as error:
                _log.error("looking for runs to watch: %s", error)
                unfinished = []
            for run in unfinished:
                try:
                    if not is_launching(self._home, run):
                        self._attach(run)
                except Exception:  # the edge of a thread: one strange run must not hide the others
                    _log.exception("taking up %s", run)
            self._closing.wait(LOOK_FOR_RUNS_S)


def check_alone(job: Job) -> None:
    """ProblemsError for what is wrong whatever the nodes are like."""
    found = errors([*check(job), *check_launch(job), *check_engine(job)])
    if len(dump_job(job)) > MAXIMUM_TEXT:
        # The store keeps the job as its file, and a run whose file cannot be read back could not be watched.
        found.append(Problem(code="file_too_large", values={"limit": MAXIMUM_TEXT}))
    if found:
        raise ProblemsError(found)
