"""Launch, queue, resume, stop and monitoring of runs.

queue_order.py decides which queued run may start now. transitions.py decides inside one transaction of the store what
may happen next, and each launch holds the launch lock of its run. So two pages, a command line beside the server, or a
repeated click start a run only once.
"""

import logging
import math
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.engines import CheckedJob
from backend.job.job import Job
from backend.job.problems import ProblemsError
from backend.runs.collect.external_run import WatchOnly
from backend.runs.connections import Connections
from backend.runs.launch.accepted_warnings import to_stored
from backend.runs.launch.launch_lock import is_launching, launch_lock
from backend.runs.launch.preflight import ConnectedNodes, connect_nodes
from backend.runs.launch.resume import ResumePolicy, choose_checkpoint, find_checkpoints
from backend.runs.launch.starter import Starter
from backend.runs.rank_secrets import ApiKeys
from backend.runs.states import RunState
from backend.runs.store import attempts, derived_runs, queue_order, run_store, transitions
from backend.runs.store.derived_runs import DerivedRun
from backend.runs.store.node_replacement import job_on_nodes
from backend.runs.store.store import Store, StoreError
from backend.runs.store.transitions import LaunchRequest
from backend.runs.supervise.gang_rules import Timing
from backend.runs.supervise.reaper import Reaper
from backend.runs.supervise.unrecorded_stop import stop_unrecorded
from backend.runs.supervise.watch import Watch

_log = logging.getLogger(__name__)

LOOK_FOR_RUNS_S = 2.0
"""Interval of the search for runs that another process launched, and for queued runs that may start."""
LAUNCHING_S = 0.2
"""Interval of the check whether another process has finished a launch."""
CLOSE_S = 5.0
"""How long close() waits for a start in progress. The next server continues a start that takes longer."""


class Runner:
    """The runs of one home folder. Safe for many threads; several runners of one home do no harm."""

    def __init__(
        self,
        home: Path,
        store: Store,
        connections: Connections,
        accepted: AcceptedConfigurations,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        audit: Callable[..., None],
        timing: Timing,
        keys: ApiKeys,
    ) -> None:
        self._home = home
        self._store = store
        self._connections = connections
        self._clock = clock
        self._monotonic = monotonic
        self._audit = audit
        self._timing = timing
        self._starter = Starter(store, connections, accepted, keys=keys, grace_s=timing.grace_s, clock=clock)
        self._watches: dict[str, Watch | WatchOnly] = {}
        self._starting: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._finder = threading.Thread(target=self._find_runs, name="find runs", daemon=True)
        self._reaper = Reaper(store, connections, grace_s=timing.grace_s, clock=clock, monotonic=monotonic)
        self._reaping = threading.Thread(target=self._reap, name="reaper", daemon=True)

    def serve(self) -> None:
        """Supervise every unfinished run from now on, and start queued runs when their turn comes."""
        self._finder.start()
        self._reaping.start()

    def close(self) -> None:
        """Stop all threads. The runs continue on their nodes."""
        self._closing.set()
        if self._finder.is_alive():
            self._finder.join()
            self._reaping.join(CLOSE_S)
        with self._lock:
            watches, starting = list(self._watches.values()), list(self._starting.values())
        for thread in starting:
            thread.join(CLOSE_S)
        for watch in watches:
            watch.close()

    def launch(self, checked: CheckedJob, run: str, request: LaunchRequest) -> str:
        """Start a run now; return its id, or the id of an earlier run with the same token. Raises ProblemsError."""
        job = checked.job
        with self._store.read() as connection:
            earlier_run = run_store.run_of_token(connection, request.token) if request.token else None
        if earlier_run is not None:
            return earlier_run
        connected = connect_nodes(job, self._connections)
        if connected.failures:
            raise ProblemsError(connected.problems)
        self._audit("launch", run=run, job=job.name, nodes=queue_order.addresses_of(job), restarts=request.restarts)
        with launch_lock(self._home, run):
            created = self._store.write(
                lambda c: transitions.create(c, run, job, request, waits=False, now=self._clock())
            )
            if created != run:
                return created
            failure = self._start(run, connected, checked)
        self._supervise(run, failure)
        return run

    def enqueue(self, job: Job, run: str, request: LaunchRequest) -> str:
        """Put a run at the end of the queue; return its id, or the id of an earlier run with the same token."""
        return self._store.write(lambda c: transitions.create(c, run, job, request, waits=True, now=self._clock()))

    def enqueue_derived(self, derived: DerivedRun, job: Job) -> str:
        """Put a derived run at the end of the queue; return its id, or that of an unfinished one of its kind."""
        return self._store.write(lambda c: derived_runs.create(c, derived, job, now=self._clock()))

    def resume(
        self, run: str, *, checkpoint: int | None, waits: bool, accepted_warnings: Collection[str] | None
    ) -> None:
        """Start the next attempt now, or put it into the queue. Raises ProblemsError.

        Nothing is recorded unless the run can be resumed and, if it starts now, the checkpoint is complete.
        """
        policy = {"checkpoint": checkpoint, "accepted": to_stored(accepted_warnings)}
        if waits:
            self._store.write(lambda c: transitions.wait_again(c, run, policy, now=self._clock()))
            return
        with self._store.read() as connection:
            job = job_on_nodes(connection, run)
            transitions.refuse_unless_ended(connection, run)
            has_begun = attempts.newest(connection, run) > 0
        connected = connect_nodes(job, self._connections)
        if has_begun:
            saved = find_checkpoints(job, run, connected.all_nodes())
            choose_checkpoint(job, run, saved, ResumePolicy(step=checkpoint))
        try:
            with launch_lock(self._home, run):
                self._store.write(lambda c: transitions.take_up(c, run, job, policy, now=self._clock()))
                failure = self._start(run, connected)
        except BlockingIOError:
            raise transitions.cannot_resume(run, RunState.STARTING) from None
        self._supervise(run, failure)

    def stop(self, run: str, *, save: bool) -> None:
        """Request the stop of a run, or cancel a queued run; return when the request is recorded. Raises ProblemsError.

        When the store cannot be written, the nodes are stopped without a record (unrecorded_stop.py).
        """
        try:
            self._store.write(lambda connection: transitions.end(connection, run, save=save, now=self._clock()))
        except StoreError as error:
            grace_s = self._timing.grace_s
            raise stop_unrecorded(self._store, self._connections, run, save=save, grace_s=grace_s, why=error) from error
        if not is_launching(self._home, run) and not self._state(run).is_final:
            self._attach(run).wake()

    def wait(self, run: str, timeout_s: float | None, *, takes_turn: bool) -> RunState:
        """Supervise a run until it ends; return its state. `takes_turn`: start it when it is queued and may start."""
        deadline = self._monotonic() + (math.inf if timeout_s is None else timeout_s)
        while not (state := self._state(run)).is_final and (remaining_s := deadline - self._monotonic()) > 0:
            if is_launching(self._home, run):
                self._closing.wait(min(remaining_s, LAUNCHING_S))
            elif state is RunState.QUEUED:
                if takes_turn:
                    self._take_turns(run)
                self._closing.wait(min(remaining_s, LAUNCHING_S))
            else:
                self._attach(run).over.wait(None if timeout_s is None else remaining_s)
        return self._state(run)

    def _take_turns(self, only: str | None = None) -> None:
        """Start the queued runs that may start now (or only one of them), each in its own thread."""
        with self._store.read() as connection:
            turns = queue_order.turns(connection, self._clock())
        for run in turns:
            with self._lock:
                if only in (None, run) and run not in self._starting:
                    thread = threading.Thread(target=self._start_turn, args=(run,), name=f"start {run}", daemon=True)
                    self._starting[run] = thread
                    thread.start()

    def _start_turn(self, run: str) -> None:
        try:
            with launch_lock(self._home, run):
                if self._store.write(lambda c: transitions.take_turn(c, run, now=self._clock())):
                    self._starter.start(run)
        except BlockingIOError:
            _log.info("%s is started by another process", run)
        except ProblemsError as error:  # recorded with the run
            _log.warning("%s could not start: %s", run, error)
        except Exception:  # the edge of a thread
            _log.exception("starting %s", run)
        finally:
            with self._lock:
                del self._starting[run]

    def _start(self, run: str, connected: ConnectedNodes, checked: CheckedJob | None = None) -> BaseException | None:
        try:
            self._starter.start(run, connected, checked)
        except BaseException as error:  # raised again after the stop of all processes
            return error
        return None

    def _supervise(self, run: str, failure: BaseException | None) -> None:
        """Supervise the run. After a failed start, wait for the stop of its processes, then raise the failure."""
        watch = self._attach(run)
        if failure is not None:
            watch.over.wait(self._timing.stop_deadline_s)
            raise failure

    def _state(self, run: str) -> RunState:
        with self._store.read() as connection:
            run_store.run_row(connection, run)
            return run_store.state_of(connection, run) or RunState.QUEUED

    def _attach(self, run: str) -> Watch | WatchOnly:
        with self._lock:
            self._watches = {key: watch for key, watch in self._watches.items() if not watch.over.is_set()}
            watch = self._watches.get(run)
            if watch is None:
                watch = self._watches[run] = self._make_watch(run)
                watch.start()
            return watch

    def _make_watch(self, run: str) -> Watch | WatchOnly:
        clocks = {"clock": self._clock, "monotonic": self._monotonic}
        if self._state(run) in (RunState.WATCHED, RunState.UNWATCHED):
            return WatchOnly(self._store, self._connections, run, **clocks)
        return Watch(self._store, self._connections, self._home, run, timing=self._timing, **clocks)

    def _find_runs(self) -> None:
        while not self._closing.is_set():
            try:
                self._find_work()
            except StoreError as error:
                _log.error("searching for runs to supervise: %s", error)
            except Exception:  # the edge of a thread: the next round tries again
                _log.exception("searching for runs to supervise")
            self._closing.wait(LOOK_FOR_RUNS_S)

    def _reap(self) -> None:
        while not self._closing.wait(LOOK_FOR_RUNS_S):
            try:
                self._reaper.reap()
            except Exception:  # the edge of a thread: the next round tries again
                _log.exception("asking nodes of ended runs")

    def _find_work(self) -> None:
        self._take_turns()
        with self._store.read() as connection:
            unfinished = run_store.unfinished_runs(connection)
        for run in unfinished:
            try:
                if self._state(run) is not RunState.QUEUED and not is_launching(self._home, run):
                    self._attach(run)
            except StoreError:
                raise
            except ProblemsError as error:  # the list of runs says so too
                _log.debug("not taken up: %s", error)
            except Exception:  # the edge of a thread: one unreadable run must not hide the others
                _log.exception("taking up %s", run)
