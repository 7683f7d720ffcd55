"""The one door to runs: preflight, launch, resume, stop, and what the page and the command line show of them.

Reading goes to the store alone, so it is the same in every process. A controller that was start()ed watches every
unfinished run, those launched or left behind by other processes too.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from backend.cluster.inventory.dataset_size import DataSize
from backend.cluster.node import Node, NodeError
from backend.cluster.ssh.host_keys import HostKey, KnownHosts
from backend.cluster.ssh.node import connect as connect_by_ssh
from backend.engines import CheckedJob
from backend.job.cluster import Calibration, Host
from backend.job.job import Job
from backend.job.launch_rules import check_nodes
from backend.job.problems import Problem, ProblemsError, errors
from backend.runs.collect import external_run
from backend.runs.collect.log_text import readable
from backend.runs.connections import Connections
from backend.runs.launch.accepted_warnings import to_stored
from backend.runs.launch.launch import candidate_ports, new_run_id
from backend.runs.launch.preflight import ConnectedNodes, PreflightReport, connect_nodes, run_preflight, warning_key
from backend.runs.launch.resume import Checkpoints, find_checkpoints, find_source, resume_policy_of
from backend.runs.records import Point, RunSnapshot, RunSummary, Source
from backend.runs.runner import Runner
from backend.runs.states import RunState
from backend.runs.store import attempts, metrics, queue_order, run_store
from backend.runs.store.metrics import FileKey
from backend.runs.store.store import Store
from backend.runs.store.transitions import LaunchRequest
from backend.runs.supervise import restart
from backend.runs.supervise.gang_rules import Timing
from backend.runs.tasks import discovery, file_copy
from backend.runs.tasks.benchmark import Measurement, measure
from backend.runs.tasks.calibration import RunMeasured, read_run
from backend.runs.tasks.discovery import Discovery, NodeMemory, refuse_without
from backend.runs.tasks.export import Exported, Tell, check_target, export_run
from backend.runs.view import snapshot

LOG_BYTES = 64 << 10


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
        self._audit = audit
        self._runner = Runner(
            home,
            store,
            self._connections,
            clock=clock,
            monotonic=monotonic,
            audit=audit,
            timing=timing or Timing(),
        )

    def start(self) -> None:
        """From now on watch every unfinished run, and start those that wait when their turn comes."""
        self._runner.serve()

    def close(self) -> None:
        """Let go of everything; runs go on."""
        self._runner.close()
        self._connections.close()

    def preflight(self, job: Job | CheckedJob) -> PreflightReport:
        """Reach all nodes, read what they are, check what a launch needs; nothing is changed on them.

        ProblemsError when the job alone is not ready to be launched.
        """
        checked = CheckedJob.of(job)
        connected = connect_nodes(checked.job, self._connections)
        return run_preflight(checked, connected, candidate_ports(checked.job))

    def model_config(self, job: Job, limit: int) -> Discovery[bytes]:
        """config.json of the model's folder, at most `limit` bytes; ProblemsError without hosts or a folder."""
        refuse_without(job, "cluster.hosts", "model.path")
        return discovery.model_config(job, connect_nodes(job, self._connections), limit)

    def memory(self, job: Job) -> Discovery[NodeMemory]:
        """What every node and its GPUs have; ProblemsError without hosts."""
        refuse_without(job, "cluster.hosts")
        return discovery.memory(job, connect_nodes(job, self._connections))

    def data_size(self, job: Job) -> Discovery[DataSize]:
        """How many samples the job's data sets have, read on a node; ProblemsError without hosts or data sets."""
        refuse_without(job, "cluster.hosts", "training.dataset", "training.dataset_dir")
        return discovery.data_size(job, connect_nodes(job, self._connections))

    def measure_speed(self, job: Job) -> Measurement:
        """What the job's nodes reach; nothing of it stays on them. ProblemsError when it cannot be measured."""
        if found := errors(check_nodes(job)):
            raise ProblemsError(found)
        run = new_run_id(replace(job, name="speed"), self._clock())
        self._audit("measure_speed", run=run, nodes=[host.address for host in job.cluster.hosts])
        return measure(job, connect_nodes(job, self._connections), run)

    def copy_missing(self, job: Job, report: PreflightReport, tell: file_copy.Tell) -> tuple[Problem, ...]:
        """Copy the model and the data that nodes lack from node 0; warnings about what could not be cleaned up.

        ProblemsError naming the node; what it has taken so far waits there, and another copy goes on from it.
        """
        run = new_run_id(replace(job, name="copy"), self._clock())
        self._audit("copy_missing", run=run, nodes=[host.address for host in job.cluster.hosts])
        return file_copy.copy(job, connect_nodes(job, self._connections), report, run, tell)

    def export(self, run_id: str, tell: Tell, *, to: str | None = None, checkpoint: int | None = None) -> Exported:
        """A Hugging Face model of what the run saved at its end, or at a step, on node 0, and how to serve it.

        Without a model saved at the end, of the newest complete checkpoint. ProblemsError: unknown_run, nothing_saved,
        export_exists, export_failed, export_by_swift, bad_format, and what the node may raise.
        """
        job = self._job(run_id)
        check_target(to)
        self._audit("export", run=run_id, to=to, checkpoint=checkpoint)
        return export_run(job, run_id, self._connections, tell, to=to, checkpoint=checkpoint)

    def accept_host_keys(self, keys: Iterable[HostKey]) -> None:
        """Remember host keys that the user has confirmed."""
        for key in keys:
            self._audit("accept_host_key", host=key.host, port=key.port, fingerprint=key.fingerprint)
            self._known_hosts.accept(key)

    def launch(
        self,
        job: Job | CheckedJob,
        *,
        queue: bool = False,
        token: str | None = None,
        restarts: int = 0,
        source: tuple[str, int | None] | None = None,
        accepted_warnings: Collection[str] | None = None,
    ) -> str:
        """Start a run and return its id when all supervisors have reported; ProblemsError when it cannot be.

        A refused launch leaves no process behind; from preflight on it stays in the history as failed. A second launch
        with the same `token` starts nothing and returns the id of the first. `restarts`: how often the gang may be
        started again by itself (restart.py). `source`: a run, and the step of one of its checkpoints (None: the newest
        complete one), to begin with; what the job changes must fit that checkpoint (engines/resharding.py).
        Warnings of the preflight whose keys (preflight.warning_key) are not accepted are a refusal too:
        warnings_not_accepted; None accepts all. They stay accepted for later attempts of the run.

        `queue`: put it at the end of the queue; it starts when its nodes are free (queue_order.py), and they are
        checked then: a warning that is not accepted ends it by name (RunSnapshot.warnings). Somebody must be there
        to start it: a started controller, or wait(takes_turn=True).
        """
        checked = CheckedJob.of(job)
        job = checked.job
        checkpoint = self.find_source(*source, job) if source else None
        request = LaunchRequest(
            token=token, restarts=restarts, source=checkpoint, accepted=to_stored(accepted_warnings)
        )
        run = new_run_id(job, self._clock())
        if not queue:
            return self._runner.launch(checked, run, request)
        self._audit("enqueue", run=run, job=job.name, nodes=queue_order.addresses_of(job), restarts=restarts)
        return self._runner.enqueue(job, run, request)

    def resume(
        self,
        run_id: str,
        *,
        checkpoint: int | None = None,
        queue: bool = False,
        accepted_warnings: Collection[str] | None = (),
    ) -> None:
        """Start the next attempt of a run that was stopped, failed or was lost, or put it into the queue.

        `accepted_warnings`: of the preflight, beside those that the run has gone past before; None accepts all.
        It goes on from the newest checkpoint that is complete on all nodes, or from that of a step; 0 begins at the
        start. ProblemsError: unknown_run, cannot_resume, no_checkpoint, checkpoint_missing, checkpoint_incomplete,
        checkpoint_damaged, and what a launch may raise.
        """
        self._audit("resume", run=run_id, checkpoint=checkpoint, queue=queue)
        self._runner.resume(run_id, checkpoint=checkpoint, waits=queue, accepted_warnings=accepted_warnings)

    def accept_warnings(self, run_id: str, keys: Collection[str]) -> None:
        """Put a run that warnings kept from starting back into the queue, to begin where it was to begin.

        `keys`: of the warnings that the user has accepted; those that did not keep it are no matter. ProblemsError.
        """
        with self._store.read() as connection:
            wish = resume_policy_of(connection, run_id)
            kept_it = snapshot.snapshot(connection, run_id, self._clock()).warnings
        known = {warning_key(one) for one in kept_it} & set(keys)
        self._audit("accept_warnings", run=run_id, warnings=sorted(known))
        self.resume(run_id, checkpoint=wish.step, queue=True, accepted_warnings=known)

    def find_source(self, run_id: str, step: int | None, job: Job | None = None) -> Source:
        """The checkpoint of a run that another can begin with: the newest complete one, or that of a step.

        With the other's job also whether its plan can load it and all its nodes see it, which `launch` asks, too.
        ProblemsError: unknown_run, no_checkpoint, checkpoint_*, and what the nodes may raise.
        """
        return find_source(self._job(run_id), run_id, step, self._connections, job)

    def checkpoints(self, run_id: str) -> Checkpoints:
        """The checkpoints of a run, as all its nodes see them now. ProblemsError when one cannot be asked."""
        job = self._job(run_id)
        return find_checkpoints(job, run_id, connect_nodes(job, self._connections).all_nodes())

    def reach(self, job: Job) -> ConnectedNodes:
        """Connect to the job's nodes, no more; host keys that are not known wait for the user."""
        return connect_nodes(job, self._connections)

    def watch(self, job: Job, log: str | None = None) -> str:
        """Attach to a training that somebody else started (`job`: outside.watched_job) and return the id it gets here.

        Nothing is written on its nodes, and `stop` only ends the watching. ProblemsError: nothing_to_watch.
        """
        nodes = self.reach(job).all_nodes()
        try:
            files = external_run.find_logs(nodes[0], external_run.folder_of(job), log)
        except NodeError as error:
            raise ProblemsError([error.problem]) from error
        run = new_run_id(job, self._clock())
        self._audit("watch", run=run, nodes=queue_order.addresses_of(job), folder=job.training.output_dir, files=files)
        self._store.write(lambda connection: external_run.register(connection, run, job, files, self._clock()))
        return run

    def stop(self, run_id: str, *, save: bool = False) -> None:
        """Ask for the end of a run, with a checkpoint or at once; returns when that is recorded.

        The nodes prove in the events and in the snapshot that nothing is left. A second stop without `save` cuts a
        pending checkpoint short; one that waits in the queue is cancelled. ProblemsError: unknown_run, run_ended; and
        stop_unrecorded, save_unrecorded where the nodes were told and the store cannot be written.
        """
        self._audit("stop", run=run_id, save=save)
        self._runner.stop(run_id, save=save)

    def move(self, run_id: str, where: queue_order.Move) -> None:
        """Change the place of a run in the queue. ProblemsError: not_queued."""
        self._audit("move", run=run_id, where=where)
        self._store.write(lambda connection: queue_order.move(connection, run_id, where))

    def allow_restarts(self, run_id: str, restarts: int) -> None:
        """How often the gang of a run may be started again by itself; 0: never. ProblemsError: unknown_run."""
        self._audit("allow_restarts", run=run_id, restarts=restarts)
        self._store.write(lambda connection: restart.allow(connection, run_id, restarts))

    def wait(self, run_id: str, timeout_s: float | None = None, *, takes_turn: bool = False) -> RunState:
        """Wait for the end of a run, watching it meanwhile; the state it is in then.

        `takes_turn`: start it here when it waits in the queue and its nodes are free, as a server would.
        """
        return self._runner.wait(run_id, timeout_s, takes_turn=takes_turn)

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Everything about one run; ProblemsError(unknown_run)."""
        with self._store.read() as connection:
            return snapshot.snapshot(connection, run_id, self._clock())

    def runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        with self._store.read() as connection:
            now = self._clock()
            return snapshot.summaries(connection, queue_order.why_waiting(connection, now), now)

    def points(self, run_id: str, after: int = 0, rank: int | None = 0) -> list[Point]:
        """Steps of one global rank (None: of all) whose `seq` lies behind `after`."""
        with self._store.read() as connection:
            return metrics.points(connection, run_id, rank=rank, after=after)

    def measured(self, run_id: str, known: Calibration | None = None) -> tuple[Job, RunMeasured]:
        """A run's job and what its newest attempt says about estimates; ProblemsError(unknown_run).

        `known`: what is known of its cluster now, in place of what the job was launched with.
        """
        with self._store.read() as connection:
            return read_run(connection, run_id, known)

    def log(self, run_id: str, node_rank: int, file: str, *, size: int = LOG_BYTES, attempt: int | None = None) -> str:
        """The newest `size` bytes of a log of a node, in the newest attempt or in another, as readable text."""
        with self._store.read() as connection:
            number = attempts.newest(connection, run_id) if attempt is None else attempt
            key = FileKey(run=run_id, attempt=number, rank=node_rank, file=file)
            return readable(metrics.log_tail(connection, key, size=size)[1])

    def _job(self, run_id: str) -> Job:
        with self._store.read() as connection:
            return run_store.job_of(connection, run_id)
