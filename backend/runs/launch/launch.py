"""Start of one attempt on all nodes: folders, files, supervisors. Each step is recorded before and after it."""

import json
import logging
import posixpath
import random
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from backend.cluster.inventory.software import NodeFacts, expand, python_command
from backend.cluster.node import Node, NodeError, ask
from backend.cluster.node_group import on_all
from backend.cluster.node_programs import FALLBACK_STOP, SUPERVISOR, node_program
from backend.cluster.preflight.lock import lock_path
from backend.cluster.typed_json import answer_of, read_or_none
from backend.engines import ENTRY, NodePlacement, Placement, Rendered
from backend.engines.slurm import INHERITED, MASTER_ADDRESS, MASTER_PORT
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.problems import Problem, ProblemsError
from backend.runs.collect.node_records import Started, Status, Stopped
from backend.runs.rank_secrets import FILE as SECRETS_FILE
from backend.runs.rank_secrets import TakenSecrets
from backend.runs.records import NodeRecord
from backend.runs.states import EventKind
from backend.runs.store import attempts, run_store
from backend.runs.store.store import Store

_log = logging.getLogger(__name__)

T = TypeVar("T")

PROTOCOL = 1
BESIDE_ENTRY = ("rank_facts.py", "step_lines.py", "swift_entry.py")
UPLOAD_S = 60.0
START_S = 60.0
STOP_CALL_S = 60.0
"""Time limit of one call of `supervisor.py stop`."""
PORTS_TRIED = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One start of the gang, before the upload to its nodes."""

    run: str
    number: int
    job: Job
    placement: Placement
    rendered: Rendered
    records: tuple[NodeRecord, ...]
    grace_s: float
    stall_s: float | None = None
    """None: the value of the job."""
    secrets: TakenSecrets = field(default_factory=TakenSecrets)
    checkpoint_step: int | None = None
    """Step of the checkpoint that it resumes from; None: the beginning."""
    versions: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Versions of the software by node rank, as evidence for a diagnosis."""
    hostnames: Mapping[int, str] = field(default_factory=dict)
    """The nodes' own names by node rank, which logs may hold. With a scheduler, only that of the login node, as 0."""


def new_run_id(job: Job, now: float) -> str:
    """Return `YYYYMMDD-HHMMSS-name-xxxx` in UTC. The last part separates two launches in the same second."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{stamp}-{job.name}-{secrets.token_hex(2)}"


def candidate_ports(job: Job) -> list[int]:
    """Return some random ports of the job's range, so that two launches seldom choose the same port."""
    first, last = job.cluster.port_range
    ports = range(first, last + 1)
    return random.sample(ports, min(PORTS_TRIED, len(ports)))


def make_placement(
    job: Job, run: str, attempt: int, facts: Mapping[int, NodeFacts], port: int, checkpoint: str | None = None
) -> Placement:
    """Place the attempt: run folders in each node's own home, and the master on host 0."""
    nodes = []
    for rank, host in enumerate(job.cluster.connected_hosts):
        environment = environment_of(job, rank)
        if environment is None:
            raise ProblemsError([Problem(code="no_environment", values={"name": job.traits.environment})])
        # With a scheduler, only the login node was read: a shared home and environment are its nature.
        node_facts = facts[rank if rank in facts else 0]
        home = node_facts.home
        nodes.append(
            NodePlacement(
                rank=rank,
                address=host.address,
                folder=f"{expand(job.cluster.run_root, home)}/{run}/{attempt}/node{rank}",
                python=expand(environment.python, home),
                setup=expand(environment.setup, home) if environment.setup else None,
                interface=None if job.cluster.scheduler else node_facts.interface,
            )
        )
    master = job.cluster.connected_hosts[0].dialled_address
    return Placement(
        run_id=run,
        attempt=attempt,
        master_address=master,
        master_port=port,
        nodes=tuple(nodes),
        checkpoint=checkpoint,
    )


def make_records(job: Job, placement: Placement, facts: Mapping[int, NodeFacts]) -> tuple[NodeRecord, ...]:
    """Return the node records. Each node gets its own mark, because demo nodes share one process table."""
    random_part = secrets.token_hex(8)
    return tuple(
        NodeRecord(
            rank=node.rank,
            address=job.cluster.connected_hosts[node.rank].name,
            folder=node.folder,
            python="python3" if container_of(job, node.rank) else node.python,
            setup=node.setup,
            mark=f"{random_part}.{node.rank}",
            clock_offset_s=facts[node.rank if node.rank in facts else 0].clock_offset_s,
        )
        for node in placement.nodes
    )


def ranks_of(job: Job, node_rank: int) -> range:
    """Return the global ranks of a node."""
    size = job.cluster.gpus_per_node
    return range(node_rank * size, (node_rank + 1) * size)


def record_attempt(store: Store, attempt: Attempt, now: float) -> None:
    """Record the attempt before anything of it is started.

    When the run was stopped meanwhile, raise ProblemsError(launch_stopped) and record nothing.
    """
    rendered = {
        "files": dict(attempt.rendered.files),
        "commands": [list(command.argv) for command in attempt.rendered.commands],
        "environment": [dict(command.environment) for command in attempt.rendered.commands],
        "secrets": attempt.secrets.names(),
        "versions": attempt.versions,
        "hostnames": attempt.hostnames,
    }
    master = (attempt.placement.master_address, attempt.placement.master_port)

    def write(connection: sqlite3.Connection) -> None:
        attempts.create(
            connection,
            attempt.run,
            attempt.number,
            master=master,
            rendered=rendered,
            nodes=attempt.records,
            time=now,
            checkpoint_step=attempt.checkpoint_step,
        )
        if not run_store.append(connection, attempt.run, EventKind.STARTING, time=now, attempt=attempt.number):
            raise stopped_meanwhile(attempt.run)

    store.write(write)


def stopped_meanwhile(run: str) -> ProblemsError:
    """Return the error for a run that was stopped during its launch."""
    return ProblemsError([Problem(code="launch_stopped", values={"run": run})])


def start_all(
    attempt: Attempt, nodes: Mapping[int, Node], record: Callable[[EventKind, int, Mapping[str, object]], object]
) -> None:
    """Upload to all nodes, then start all supervisors. Nothing is started unless every upload succeeded.

    Raises GroupError, which names the nodes that failed. The other nodes may have started.
    """
    on_all(nodes, lambda rank, node: upload(attempt, rank, node), UPLOAD_S)

    def start(rank: int, node: Node) -> None:
        record(EventKind.NODE_STARTING, rank, {"folder": attempt.records[rank].folder})
        if attempt.secrets:
            node.write(f"{attempt.records[rank].folder}/{SECRETS_FILE}", attempt.secrets.file())
        record(EventKind.NODE_STARTED, rank, start_supervisor(attempt.records[rank], node))

    on_all(nodes, start, START_S)


def upload(attempt: Attempt, rank: int, node: Node) -> None:
    """Create the run folder of a node with its files."""
    folder = attempt.records[rank].folder
    files = {name: text.encode() for name, text in attempt.rendered.files.items()}
    files |= {name: node_program(name) for name in (SUPERVISOR, ENTRY, *BESIDE_ENTRY)}
    files["spec.json"] = json.dumps(make_spec(attempt, rank), indent=1).encode()
    node.fill_folder(folder, files, ["control"])


def make_spec(attempt: Attempt, rank: int) -> dict[str, object]:
    """Return the specification for the supervisor of a node (protocol 1)."""
    command, placement = attempt.rendered.commands[rank], attempt.placement.nodes[rank]
    root = posixpath.dirname(posixpath.dirname(posixpath.dirname(placement.folder)))
    if attempt.job.cluster.scheduler is None:
        lock = lock_path(root, attempt.job.cluster.hosts[rank])
        allocation: dict[str, object] = {}
    else:  # the scheduler decides who uses a node, and tells its tasks what they got
        lock = f"{placement.folder}/lock"
        allocation = {"inherit": list(INHERITED), "from_environment": [MASTER_ADDRESS, MASTER_PORT]}
    return {
        **allocation,
        "protocol": PROTOCOL,
        "run": attempt.run,
        "attempt": attempt.number,
        "node_rank": rank,
        "mark": attempt.records[rank].mark,
        "argv": list(command.argv),
        "environment": dict(command.environment),
        "setup": placement.setup,
        "secrets": f"{placement.folder}/{SECRETS_FILE}" if attempt.secrets else None,
        "container": container_of(attempt.job, rank),
        "lock": lock,
        "grace_s": attempt.grace_s,
        "stall_s": attempt.stall_s or attempt.job.stall_s,
    }


def container_of(job: Job, rank: int) -> dict[str, object] | None:
    """Return the container of a node for its supervisor; None without one."""
    environment = environment_of(job, rank)
    return asdict(environment.container) if environment and environment.container else None


def start_supervisor(record: NodeRecord, node: Node) -> Started:
    """Start the supervisor of a node, which starts the ranks. Raises NodeError when it refuses."""
    answer = answer_of(node.name, Started, ask(node, supervisor_command(record, "start"), timeout_s=START_S))
    if answer["ok"]:
        return answer
    if answer.get("reason") == "lock_held":
        raise NodeError("node_locked", node.name, run=answer.get("holder", {}).get("run", "?"))
    raise NodeError("start_failed", node.name, detail=answer.get("detail", ""))


def ask_status(record: NodeRecord, node: Node, timeout_s: float) -> Status:
    """Ask a node whether its supervisor is alive, or how the node ended. Raises NodeError."""
    return stop_answer(node, Status, ask(node, supervisor_command(record, "status"), timeout_s=timeout_s))


def stop_supervisor(record: NodeRecord, node: Node, grace_s: float, *, by_shell: bool = False) -> Stopped:
    """Stop all processes of an attempt on a node. `left` of the answer is empty when none is left. Raises NodeError.

    A shell script does it when the node's Python does not start any more (its environment was deleted, or `setup` is
    broken), or at once with `by_shell`.
    """
    try:
        return _stop_by_shell(record, node, grace_s) if by_shell else _stop_by_program(record, node, grace_s)
    except NodeError as error:
        if by_shell or error.code != "bad_answer":
            raise
        _log.warning("stop by a shell script, because Python does not answer: %s", error)
        return _stop_by_shell(record, node, grace_s)


def _stop_by_shell(record: NodeRecord, node: Node, grace_s: float) -> Stopped:
    argv = ["/bin/sh", "-s", record.folder, record.mark, f"{grace_s:g}"]
    try:
        return stop_answer(node, Stopped, ask(node, argv, timeout_s=STOP_CALL_S, stdin=node_program(FALLBACK_STOP)))
    except NodeError as error:
        if error.code != "bad_answer" or not record.mark:
            raise
        mark, detail = f"MEGABOARD_RUN={record.mark}", error.values.get("detail", "")
        raise NodeError("stop_failed", node.name, mark=mark, detail=detail) from error


def _stop_by_program(record: NodeRecord, node: Node, grace_s: float) -> Stopped:
    if not node.exists(f"{record.folder}/{SUPERVISOR}"):
        # It was never uploaded, or was removed during the run. Only the mark finds the processes.
        environment = Environment(python=record.python, setup=record.setup)
        options = ["stop", record.folder, "--mark", record.mark, "--grace", f"{grace_s:g}"]
        argv = python_command(environment, ["-", *options])
        answer = ask(node, argv, timeout_s=STOP_CALL_S, stdin=node_program(SUPERVISOR))
        return {**stop_answer(node, Stopped, answer), "started": False}
    command = supervisor_command(record, "stop", "--grace", f"{grace_s:g}")
    return stop_answer(node, Stopped, ask(node, command, timeout_s=STOP_CALL_S))


def stop_answer(node: Node, shape: type[T], answer: object) -> T:
    """Read a supervisor's answer to a stop. Raises NodeError(bad_answer) if a required field is wrong.

    Other wrong fields are ignored, because they must not prevent the stop of a node.
    """
    record = read_or_none(shape, answer)
    return answer_of(node.name, shape, answer) if record is None else record


def ask_for_save(record: NodeRecord, node: Node) -> None:
    """Ask the ranks, through one node, to save a checkpoint after the current step and to exit. Raises NodeError."""
    node.write(f"{record.folder}/control/stop", b"")


def supervisor_command(record: NodeRecord, action: str, *options: str) -> list[str]:
    """Return the command that calls a node's supervisor program with an action."""
    environment = Environment(python=record.python, setup=record.setup)
    return python_command(environment, [f"{record.folder}/{SUPERVISOR}", action, record.folder, *options])
