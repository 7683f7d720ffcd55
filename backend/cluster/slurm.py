"""Slurm, as its commands on the login node answer: requests that it refuses, jobs, their states, and their end.

Jobs are found by their name, which is unique to one attempt of a run: so a job is known even if this process died
between its submission and the record of its id. Formats: https://slurm.schedmd.com/squeue.html.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backend.cluster.node import Node, NodeError, Result, tail

ASK_S = 30.0
END_S = 45.0
"""Time for a cancelled job to end: Slurm's KillWait is 30 s by default."""
ENDED_AGAIN_S = 1.0
MOST_PARTITIONS = 200
_COLUMNS = ("%i", "%T", "%P", "%S", "%N", "%V", "%r")
_NO_DATE = ("N/A", "", "Unknown", "NONE")

WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
ACTIVE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})
FORGOTTEN = "FORGOTTEN"
"""Our own state of a job that has ended and that Slurm does not remember (MinJobAge, 300 s by default)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob:
    """One Slurm job, as Slurm reports it."""

    id: str
    state: str
    """Slurm's word, such as PENDING, RUNNING, TIMEOUT."""
    reason: str = ""
    """Why it waits, or why it ended."""
    partition: str = ""
    start: str = ""
    """When it started, or is expected to start, by the cluster's clock; empty if Slurm does not say."""
    nodes: str = ""
    """Slurm's list of the nodes, such as n[1-2]; empty while it waits."""
    position: int | None = None
    """Place among the waiting jobs of its partition, 1 is the next."""

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def is_over(self) -> bool:
        """Return whether no process of the job is left: Slurm leaves COMPLETING when every node has said so."""
        return self.state not in WAITING and self.state not in ACTIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Nodes of one kind in one partition."""

    name: str
    is_default: bool
    is_up: bool
    time_limit: str
    """[D-]HH:MM:SS, or `infinite`."""
    nodes: int
    idle: int
    cpus: str
    memory_mib: str
    """Of one node, as `cpus`. A trailing + says that nodes differ."""
    gres: str
    """Generic resources of one node, such as gpu:h100:8; empty without any."""
    features: str
    """What a constraint may name; empty without any."""


def find_partitions(node: Node) -> tuple[Partition, ...]:
    """Return the partitions that the user of the login node can see. NodeError(slurm_silent, slurm_missing)."""
    result = _ask(node, ["sinfo", "-h", "-o", "%P|%a|%l|%F|%c|%m|%G|%f"])
    if result.code:
        raise NodeError("slurm_silent", node.name, field="cluster.scheduler", said=tail(result.err or result.out))
    rows = [line.split("|", 7) for line in result.out.splitlines()[:MOST_PARTITIONS] if line.count("|") >= 7]
    return tuple(_partition(*row) for row in rows)


def _partition(name: str, state: str, limit: str, counts: str, cpus: str, memory: str, gres: str, more: str
               ) -> Partition:  # fmt: skip
    _, idle, _, total = [int(part) if part.isdigit() else 0 for part in [*counts.split("/"), "", "", "", ""][:4]]
    return Partition(
        name=name.rstrip("*"),
        is_default=name.endswith("*"),
        is_up=state == "up",
        time_limit=limit.strip(),
        nodes=total,
        idle=idle,
        cpus=cpus.strip(),
        memory_mib=memory.strip(),
        gres="" if gres == "(null)" else gres,
        features="" if more == "(null)" else more,
    )


def test_request(node: Node, script: str) -> str:
    """Return what Slurm says to a request without submitting it: when it would start.

    Raises NodeError(slurm_refused).
    """
    result = _ask(node, ["sbatch", "--test-only"], stdin=script.encode())
    if result.code:
        raise refusal(node.name, tail(result.err or result.out))
    return tail(result.err or result.out)


def submit(node: Node, script: str) -> str:
    """Submit a job, and return its id. Raises NodeError(slurm_refused)."""
    result = _ask(node, ["sbatch", "--parsable"], stdin=script.encode())
    if result.code:
        raise refusal(node.name, tail(result.err or result.out))
    return result.out.strip().splitlines()[-1].partition(";")[0]


FIELDS: Sequence[tuple[str, str]] = (
    ("partition", "cluster.scheduler.partition"),
    ("account", "cluster.scheduler.account"),
    ("qos", "cluster.scheduler.qos"),
    ("time limit", "cluster.scheduler.time_limit"),
    ("feature", "cluster.scheduler.constraint"),
    ("node count", "cluster.nodes"),
    ("cpu count", "cluster.scheduler.cpus_per_node"),
    ("generic resource", "cluster.gpus_per_node"),
    ("node configuration", "cluster.nodes"),
)
"""Words in a refusal -> the field that they are about (error texts of Slurm 22.05, slurm_errno.c)."""


def refusal(name: str, said: str) -> NodeError:
    """Return the error of a request that Slurm refuses, at the field that its words name."""
    field = next((field for words, field in FIELDS if words in said.lower()), "cluster.scheduler")
    return NodeError("slurm_refused", name, field=field, said=said.replace("sbatch: ", ""))


def find_job(node: Node, name: str) -> SlurmJob | None:
    """Return the newest job of this name; None if Slurm knows none.

    Raises NodeError(slurm_silent) if it does not answer.
    """
    result = _ask(node, ["squeue", "-h", "-t", "all", "-n", name, "-o", "|".join(_COLUMNS)])
    if result.code:
        raise NodeError("slurm_silent", node.name, field="cluster.scheduler", said=tail(result.err or result.out))
    rows = [line.split("|", len(_COLUMNS) - 1) for line in result.out.splitlines() if line.count("|") >= 6]
    if not rows:
        return None
    number, state, partition, start, nodes, _, reason = max(rows, key=lambda row: int(row[0].split("_")[0]))
    return SlurmJob(
        id=number,
        state=state,
        reason="" if reason == "None" else reason,
        partition=partition,
        start="" if start in _NO_DATE else start,
        nodes=nodes,
        position=_position(node, number, partition) if state == "PENDING" else None,
    )


def past_job(node: Node, name: str) -> SlurmJob | None:
    """Return a job that squeue has forgotten, from Slurm's accounting; None without accounting or without the job."""
    result = _ask(node, ["sacct", "-n", "-X", "-P", "--name", name, "-S", "now-30days", "-o", "JobID,State,NodeList"])
    rows = [line.split("|") for line in result.out.splitlines() if line.count("|") == 2]
    if result.code or not rows:
        return None
    number, state, nodes = rows[-1]
    return SlurmJob(id=number, state=state.split()[0], nodes=nodes)


def node_names(node: Node, nodes: str) -> list[str]:
    """Return the names in Slurm's list of nodes, in the order of their ranks."""
    result = _ask(node, ["scontrol", "show", "hostnames", nodes])
    return result.out.split() if result.code == 0 else []


def down_nodes(node: Node, nodes: str) -> Mapping[str, str]:
    """Return the nodes of a list that do not work, with Slurm's reason."""
    result = _ask(node, ["sinfo", "-h", "-N", "-n", nodes, "-t", "down,drain,fail,no_respond", "-o", "%N|%T|%E"])
    rows = [line.split("|", 2) for line in result.out.splitlines() if line.count("|") >= 2]
    return {name: f"{state}: {reason}" for name, state, reason in rows} if result.code == 0 else {}


def cancel(node: Node, name: str) -> None:
    """Cancel the jobs of this name. A job that has ended is no error."""
    _ask(node, ["scancel", "--name", name])


def end_job(
    node: Node,
    name: str,
    ask_to_end: Callable[[], object],
    has_ended: Callable[[], bool],
    grace_s: float,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SlurmJob | None:
    """End a job, and return its last state; None if Slurm does not know it (any more).

    A started job is asked first (`ask_to_end`), and cancelled when `has_ended` says that all of its supervisors have
    written their record, or after the grace time. Raises NodeError: slurm_silent, slurm_not_ended.
    """
    job = find_job(node, name)
    deadline = monotonic() + grace_s + END_S
    if job is not None and not job.is_waiting and not job.is_over:
        ask_to_end()
        asked = monotonic()
        while not has_ended() and monotonic() - asked < grace_s + 5:
            sleep(ENDED_AGAIN_S / 2)
    while job is not None and not job.is_over:
        cancel(node, name)
        sleep(ENDED_AGAIN_S)
        job = find_job(node, name)
        if monotonic() > deadline and job is not None and not job.is_over:
            raise NodeError("slurm_not_ended", node.name, field="cluster.scheduler", job=job.id, state=job.state)
    return job


def _position(node: Node, number: str, partition: str) -> int | None:
    result = _ask(node, ["squeue", "-h", "-t", "PENDING", "-p", partition, "-S", "-p,i", "-o", "%i"])
    waiting = result.out.split()
    return waiting.index(number) + 1 if result.code == 0 and number in waiting else None


def _ask(node: Node, argv: Sequence[str], stdin: bytes = b"") -> Result:
    """Run one of Slurm's commands, which may hang while its controller is away. Raises NodeError(slurm_missing)."""
    result = node.run(["timeout", f"{ASK_S:g}", *argv], timeout_s=ASK_S + 5, stdin=stdin)
    if result.code in (126, 127):
        detail = tail(result.err)
        raise NodeError("slurm_missing", node.name, field="cluster.scheduler.login", command=argv[0], detail=detail)
    if result.code == 124:
        raise NodeError("slurm_silent", node.name, field="cluster.scheduler", said=f"{argv[0]}: no answer")
    return result
