"""The controller of runs: preflight, launch, resume, stop, and the data that the page and the command line show.

Reads use only the store, so every process gets the same answers. A started controller supervises every unfinished run,
including the runs of other processes.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from backend.cluster.node import Node, NodeError
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.ssh.host_keys import HostKey, KnownHosts
from backend.cluster.ssh.node import connect as connect_by_ssh
from backend.engines import CheckedJob
from backend.job.cluster import Calibration, Host
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.collect import external_run
from backend.runs.collect.log_text import readable
from backend.runs.connections import Connections
from backend.runs.evaluations import Evaluations
from backend.runs.launch.accepted_warnings import to_stored
from backend.runs.launch.derived_start import chat_request, derived_job, evaluation_request
from backend.runs.launch.launch import candidate_ports, new_run_id
from backend.runs.launch.preflight import ConnectedNodes, PreflightReport, connect_nodes, run_preflight, warning_key
from backend.runs.launch.resume import Checkpoints, find_checkpoints, find_source, resume_policy_of
from backend.runs.model_chat import Chats
from backend.runs.node_tasks import NodeTasks
from backend.runs.rank_secrets import ApiKeys
from backend.runs.records import Point, RunLabels, RunSnapshot, RunSummary, StartCheckpoint
from backend.runs.runner import Runner
from backend.runs.states import RunState
from backend.runs.store import attempts, metrics, node_replacement, queue_order, run_labels
from backend.runs.store.derived_runs import DerivedRun
from backend.runs.store.metrics import FileKey
from backend.runs.store.node_replacement import Cordon, job_on_nodes
from backend.runs.store.store import Store
from backend.runs.store.transitions import LaunchRequest
from backend.runs.supervise import restart
from backend.runs.supervise.gang_rules import Timing
from backend.runs.tasks.calibration import RunMeasured, read_run
from backend.runs.tasks.export import Exported, ReportLine, check_target, export_run
from backend.runs.view import snapshot

LOG_BYTES = 64 << 10


class Controller:
    """Runs of one home folder. Safe for many threads; several controllers of one home do no harm.

    `connect(host, known_hosts)` connects to a node. `audit(action, **fields)` records each action before it is done.
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
        self._accepted = AcceptedConfigurations()
        keys = ApiKeys()
        self.chats = Chats(store, self._connections, keys, clock=clock)
        """The chats with models of runs."""
        self.evaluations = Evaluations(store, self._connections, clock=clock)
        """The evaluations of models of runs."""
        self.tasks = NodeTasks(self._connections, clock, audit)
        """Short work on the nodes of a job, such as reading its data, copying files and installing an engine."""
        self._runner = Runner(
            home,
            store,
            self._connections,
            self._accepted,
            clock=clock,
            monotonic=monotonic,
            audit=audit,
            timing=timing or Timing(),
            keys=keys,
        )

    def start(self) -> None:
        """Supervise every unfinished run from now on, and start queued runs when their turn comes."""
        self._runner.serve()

    def close(self) -> None:
        """Stop all threads and close all connections. The runs continue on their nodes."""
        self._runner.close()
        self._connections.close()

    def preflight(self, job: Job | CheckedJob) -> PreflightReport:
        """Connect to all nodes, read their inventory, and check what a launch needs. Nothing changes on the nodes.

        Raises ProblemsError when the job itself has errors.
        """
        checked = CheckedJob.of(job)
        connected = connect_nodes(checked.job, self._connections)
        return run_preflight(checked, connected, candidate_ports(checked.job), self._accepted, self.cordons())

    def cordons(self) -> Mapping[str, Cordon]:
        """Return the nodes that are kept out since a spare took their place, by name."""
        with self._store.read() as connection:
            return node_replacement.cordons(connection)

    def uncordon(self, node: str) -> None:
        """Let runs start on a node again. Raises ProblemsError(not_cordoned)."""
        self._audit("uncordon", node=node)
        if not self._store.write(lambda connection: node_replacement.uncordon(connection, node)):
            raise ProblemsError([Problem(code="not_cordoned", values={"node": node})])

    def export(
        self, run_id: str, progress: ReportLine, *, to: str | None = None, checkpoint: int | None = None
    ) -> Exported:
        """Export a Hugging Face model on node 0, and return its folder and the command that serves it.

        The source is the model that the run saved at its end, else the newest complete checkpoint, or the checkpoint
        of a step. Raises ProblemsError: unknown_run, nothing_saved, export_exists, export_failed, export_by_swift,
        bad_format, and problems of the node.
        """
        job = self._job(run_id)
        check_target(to)
        self._audit("export", run=run_id, to=to, checkpoint=checkpoint)
        return export_run(job, run_id, self._connections, progress, to=to, checkpoint=checkpoint)

    def start_chat(self, run_id: str, models: Collection[str], *, checkpoint: int | None = None) -> str:
        """Put a chat with a run's models into the queue, and return its id; that of an unfinished one, if there is one.

        `models`: `tuned` is what the run has trained, `base` is the model that it began with. `checkpoint`: the step of
        the tuned model; None: the end of the run. `stop` ends the chat. Raises ProblemsError: unknown_run,
        chat_no_model, chat_of_scores, nodes_by_scheduler.
        """
        trained = self._job(run_id)
        request = chat_request(trained, list(models), checkpoint)
        job = derived_job(trained, len(models))
        run = new_run_id(replace(job, name=f"{job.name}-chat"), self._clock())
        self._audit("chat", run=run, trained=run_id, models=sorted(models), checkpoint=checkpoint)
        return self._runner.enqueue_derived(DerivedRun(run=run, kind="chat", trained=run_id, request=request), job)

    def start_evaluation(
        self, run_id: str, models: Collection[str], *, rows: int, max_tokens: int, checkpoint: int | None = None
    ) -> str:
        """Put an evaluation of a run's models into the queue; return its id, or that of an unfinished one.

        The models answer the first `rows` rows of the job's data for evaluation, with at most `max_tokens` tokens each.
        Raises ProblemsError: as start_chat, and evaluation_by_swift, evaluation_needs_sft, evaluation_too_large.
        """
        trained = self._job(run_id)
        job = derived_job(trained, len(models))
        request = evaluation_request(trained, list(models), checkpoint, rows, max_tokens)
        run = new_run_id(replace(job, name=f"{job.name}-eval"), self._clock())
        self._audit("evaluate", run=run, trained=run_id, models=sorted(models), checkpoint=checkpoint, rows=rows)
        derived = DerivedRun(run=run, kind="evaluation", trained=run_id, request=request)
        return self._runner.enqueue_derived(derived, job)

    def accept_host_keys(self, keys: Iterable[HostKey]) -> None:
        """Store host keys that the user has confirmed."""
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
        """Start a run, and return its id when all supervisors have reported. Raises ProblemsError.

        A failed launch leaves no process behind. From the preflight on it stays in the history as a failed run.

        - `queue`: put the run at the end of the queue. A started controller, or wait(takes_turn=True), starts it when
          its nodes are free (queue_order.py). The preflight runs then, and a warning that is not accepted ends the run
          (RunSnapshot.warnings).
        - `token`: a second launch with the same token starts nothing and returns the id of the first.
        - `restarts`: the number of automatic restarts of the gang (restart.py).
        - `source`: a run and the step of its checkpoint (None: the newest complete one) that the new run starts from.
          The job must fit that checkpoint (engines/resharding.py).
        - `accepted_warnings`: keys (preflight.warning_key) of the preflight warnings that the user accepted; None
          accepts all. Another warning refuses the launch (warnings_not_accepted). Later attempts accept them too.
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
        """Start the next attempt of a stopped, failed or lost run, or put it into the queue.

        `checkpoint`: the step to resume from; None: the newest checkpoint that is complete on all nodes; 0: restart
        the training from the beginning. `accepted_warnings`: as for `launch`, in addition to the warnings that were
        accepted before. Raises ProblemsError: unknown_run, cannot_resume, no_checkpoint, checkpoint_missing,
        checkpoint_incomplete, checkpoint_damaged, and the problems of a launch.
        """
        self._audit("resume", run=run_id, checkpoint=checkpoint, queue=queue)
        self._runner.resume(run_id, checkpoint=checkpoint, waits=queue, accepted_warnings=accepted_warnings)

    def accept_warnings(self, run_id: str, keys: Collection[str]) -> None:
        """Put a run that failed because of warnings back into the queue, with the same checkpoint.

        Raises ProblemsError.

        `keys`: the keys of the warnings that the user accepted. Keys of other warnings have no effect.
        """
        with self._store.read() as connection:
            policy = resume_policy_of(connection, run_id)
            warnings = snapshot.snapshot(connection, run_id, self._clock()).warnings
        accepted = {warning_key(warning) for warning in warnings} & set(keys)
        self._audit("accept_warnings", run=run_id, warnings=sorted(accepted))
        self.resume(run_id, checkpoint=policy.step, queue=True, accepted_warnings=accepted)

    def find_source(self, run_id: str, step: int | None, job: Job | None = None) -> StartCheckpoint:
        """Return a checkpoint that another run can start from: the checkpoint of a step, or the newest complete one.

        `job`: the job of the other run. Then also check that its plan can load the checkpoint and that all its nodes
        have the files. Raises ProblemsError: unknown_run, no_checkpoint, checkpoint_*, and problems of the nodes.
        """
        return find_source(self._job(run_id), run_id, step, self._connections, job)

    def checkpoints(self, run_id: str) -> Checkpoints:
        """List the checkpoints of a run on all its nodes. Raises ProblemsError when a node cannot be read."""
        job = self._job(run_id)
        return find_checkpoints(job, run_id, connect_nodes(job, self._connections).all_nodes())

    def reach(self, job: Job) -> ConnectedNodes:
        """Connect to the job's nodes. The user must confirm unknown host keys."""
        return connect_nodes(job, self._connections)

    def watch(self, job: Job, log: str | None = None) -> str:
        """Monitor an external run (`job`: external_run.watched_job); return its new id.

        Nothing is written on its nodes, and `stop` only ends the monitoring. Raises ProblemsError: nothing_to_watch.
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
        """Request the stop of a run, at once or after a checkpoint (`save`); return when the request is recorded.

        The events and the snapshot show each node's proof that no process is left. A second stop without `save`
        interrupts a pending checkpoint. A stop of a queued run cancels it. Raises ProblemsError: unknown_run,
        run_ended; stop_unrecorded and save_unrecorded when the nodes got the request but the store cannot be written.
        """
        self._audit("stop", run=run_id, save=save)
        self._runner.stop(run_id, save=save)

    def move(self, run_id: str, where: queue_order.Move) -> None:
        """Move a run in the queue. Raises ProblemsError: not_queued."""
        self._audit("move", run=run_id, where=where)
        self._store.write(lambda connection: queue_order.move(connection, run_id, where))

    def allow_restarts(self, run_id: str, restarts: int) -> None:
        """Set the number of automatic restarts of a run. Raises ProblemsError: unknown_run."""
        self._audit("allow_restarts", run=run_id, restarts=restarts)
        self._store.write(lambda connection: restart.allow(connection, run_id, restarts))

    def set_labels(self, run_id: str, labels: RunLabels) -> None:
        """Replace the tags and the note of a run, and whether the list hides it.

        Raises ProblemsError: unknown_run, tag_unusable, too_many_tags, note_too_long.
        """
        self._audit("set_labels", run=run_id, tags=list(labels.tags), hidden=labels.is_hidden)
        self._store.write(lambda connection: run_labels.write(connection, run_id, labels))

    def wait(self, run_id: str, timeout_s: float | None = None, *, takes_turn: bool = False) -> RunState:
        """Supervise a run until it ends or the time is over; return its state.

        `takes_turn`: start a queued run here when its nodes are free, as a server would.
        """
        return self._runner.wait(run_id, timeout_s, takes_turn=takes_turn)

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Return everything about one run. Raises ProblemsError(unknown_run)."""
        with self._store.read() as connection:
            return snapshot.snapshot(connection, run_id, self._clock())

    def runs(self) -> list[RunSummary]:
        """Return all runs, newest first."""
        with self._store.read() as connection:
            now = self._clock()
            return snapshot.summaries(connection, queue_order.why_waiting(connection, now), now)

    def points(self, run_id: str, after: int = 0, rank: int | None = 0) -> list[Point]:
        """Return the steps of one global rank (None: of all ranks) with a `seq` greater than `after`."""
        with self._store.read() as connection:
            return metrics.points(connection, run_id, rank=rank, after=after)

    def measured(self, run_id: str, calibration: Calibration | None = None) -> tuple[Job, RunMeasured]:
        """Return the job of a run, and measured values of its newest attempt beside the estimates.

        `calibration`: the current calibration of the cluster, instead of that of the launch.
        Raises ProblemsError(unknown_run).
        """
        with self._store.read() as connection:
            return read_run(connection, run_id, calibration)

    def log(self, run_id: str, node_rank: int, file: str, *, size: int = LOG_BYTES, attempt: int | None = None) -> str:
        """Return the last `size` bytes of a log of a node as readable text, of the newest attempt or of another."""
        with self._store.read() as connection:
            number = attempts.newest(connection, run_id) if attempt is None else attempt
            key = FileKey(run=run_id, attempt=number, rank=node_rank, file=file)
            return readable(metrics.log_tail(connection, key, size=size)[1])

    def _job(self, run_id: str) -> Job:
        with self._store.read() as connection:
            return job_on_nodes(connection, run_id)
