"""Runs one of our programs on some nodes, under the same supervisor as a run, and removes all its files afterwards.

The store has no record of it. The supervisors hold the locks of the nodes, so no run starts meanwhile. If this process
dies, they stop their processes after a time without output.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from backend.cluster.inventory.software import NodeFacts, read_all_software
from backend.cluster.node import Node, NodeError, ask, tail
from backend.cluster.node_group import GroupError, try_all
from backend.cluster.node_json import BadJson, parse_node_json
from backend.cluster.preflight.master_port import choose_port
from backend.cluster.typed_json import read
from backend.engines import Placement, Rendered
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.collect import node_records
from backend.runs.collect.log_offset import offset_to_read
from backend.runs.collect.node_records import Exit, Stopped
from backend.runs.launch import launch
from backend.runs.redact import redact
from backend.runs.supervise.gang_rules import LOST_AFTER_S

_log = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_S = 3.0
CALL_S = 40.0
LOG_BYTES = 16 << 10
SILENT = frozenset({"unreachable", "lost", "timeout", "local_network", "local_resources", "address_unknown"})
"""Codes of an outage that may pass: of the node, of the network, or of this machine."""
REMOVE = (
    'grep -qsF -- "$2" "$1/spec.json" && rm -rf -- "$1"; '
    'rmdir -- "$1/control" "$1" "$3" "$4" 2>/dev/null; [ ! -e "$1" ]'
)
"""(folder, mark, folders above it) for sh; false when the folder is still there."""


def read_facts(job: Job, nodes: Mapping[int, Node]) -> dict[int, NodeFacts]:
    """Read the software of every node. Raises ProblemsError when a node cannot be read."""
    return all_read(read_all_software(job, nodes))


def all_read(results: Mapping[int, T | NodeError]) -> dict[int, T]:
    """Return the results of all nodes. Raises ProblemsError when a node has none."""
    failed = [result.problem for result in results.values() if isinstance(result, NodeError)]
    if failed:
        raise ProblemsError(failed)
    return {rank: result for rank, result in results.items() if not isinstance(result, NodeError)}


def free_port(job: Job, node: Node) -> int:
    """Return a port of the job's range that is free on node 0. Raises ProblemsError when none is free."""
    try:
        return choose_port(job, node, launch.candidate_ports(job))
    except NodeError as error:
        raise ProblemsError([error.problem]) from error


def make_attempt(
    job: Job, run: str, placement: Placement, facts: Mapping[int, NodeFacts], rendered: Rendered, stall_s: float
) -> launch.Attempt:
    """Return the attempt that starts `rendered` in `placement`, without the ranks' secrets: no task needs them."""
    return launch.Attempt(
        run=run,
        number=1,
        job=job,
        placement=placement,
        rendered=rendered,
        records=launch.make_records(job, placement, facts),
        grace_s=GRACE_S,
        stall_s=stall_s,
    )


def run_task(
    attempt: launch.Attempt, nodes: Mapping[int, Node], code: str, wait: Callable[[], T]
) -> tuple[T, tuple[Problem, ...]]:
    """Start the task and `wait` for its result. In every case, stop its processes and remove its folders afterwards.

    The second part of the result warns, with `code`, of processes and folders that are left. ProblemsError has these
    warnings after its cause.
    """
    started: set[int] = set()
    try:
        launch.start_all(attempt, nodes, lambda kind, rank, detail: started.add(rank))
        result = wait()
    except (GroupError, NodeError, ProblemsError) as error:
        problems = (error.problem,) if isinstance(error, NodeError) else error.problems
        raise ProblemsError((*problems, *clean(attempt, nodes, started, code))) from error
    except BaseException:  # Ctrl-C too: the processes are stopped before it is raised again
        clean(attempt, nodes, started, code)
        raise
    return result, tuple(clean(attempt, nodes, started, code))


class NodeReader:
    """Reads from the nodes of a task. A node that does not answer is lost after LOST_AFTER_S, not at once.

    The task goes on meanwhile: its supervisor needs no connection.
    """

    def __init__(self, nodes: Mapping[int, Node], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._monotonic = monotonic
        self._silent_since: dict[int, float] = {}

    def read(self, fn: Callable[[int, Node], T], ranks: Collection[int] | None = None) -> dict[int, T | None]:
        """Return the answers of all nodes, or of `ranks`. None: this node is silent.

        Raises GroupError when one is lost.
        """
        chosen = {rank: node for rank, node in self._nodes.items() if ranks is None or rank in ranks}
        results, failures = try_all(chosen, fn, CALL_S)
        for rank in results:
            self._silent_since.pop(rank, None)
        lost = {rank: error for rank, error in failures.items() if self._is_lost(rank, error)}
        if lost:
            raise GroupError(results, lost)
        return {rank: results.get(rank) for rank in chosen}

    def _is_lost(self, rank: int, error: NodeError) -> bool:
        if error.code not in SILENT:
            return True
        if rank not in self._silent_since:
            _log.warning("waiting for a node that does not answer: %s", error)
        return self._monotonic() - self._silent_since.setdefault(rank, self._monotonic()) >= LOST_AFTER_S


def read_exit(attempt: launch.Attempt, rank: int, node: Node) -> Exit | None:
    """Read the exit record of a node; None before its exit."""
    data = read_file(node, f"{attempt.records[rank].folder}/exit")
    return None if data is None else node_records.read_exit(data, time.time())[0]


def read_answer(node: Node, path: str, shape: type[T]) -> T | None:
    """Read a record from an atomically written file; None before it exists. Raises NodeError, also for a bad record."""
    data = read_file(node, path)
    if data is None:
        return None
    try:
        record, faults = read(shape, parse_node_json(data))
    except BadJson as error:
        record, faults = None, [str(error)]
    if record is None or faults:
        raise NodeError("bad_answer", node.name, command=path, exit=0, detail="; ".join(faults))
    return record


def read_file(node: Node, path: str) -> bytes | None:
    """Read a file up to the largest size that our programs write; None before it exists."""
    try:
        return node.read(path)
    except NodeError as error:
        if error.code != "missing_file":
            raise
        return None


def log_excerpt(node: Node, path: str) -> str:
    """Read the end of a log without secrets; empty when there is no log."""
    try:
        offset = offset_to_read(node, path, 0, keep=LOG_BYTES, grain=LOG_BYTES)
        data = node.read(path, offset, 3 * LOG_BYTES)[-LOG_BYTES:]
    except NodeError:
        return ""
    return tail(redact(data.decode(errors="replace")))


def newest_line(node: Node, path: str) -> str:
    """Read the last line of a log without secrets; empty when there is no log."""
    return log_excerpt(node, path).rpartition("\n")[2]


def clean(attempt: launch.Attempt, nodes: Mapping[int, Node], started: Collection[int], code: str) -> list[Problem]:
    """Stop all processes on every node and remove its folder; return failures as warnings with this `code`."""

    def clean_one(rank: int, node: Node) -> bool:
        record = attempt.records[rank]
        if rank in started:
            stop = launch.supervisor_command(record, "stop", "--grace", str(GRACE_S))
            if launch.stop_answer(node, Stopped, ask(node, stop, timeout_s=CALL_S))["left"]:
                return False
        # Only a folder with the mark of this attempt is removed. The folders above it are removed when they are empty.
        parent = record.folder.rpartition("/")[0]
        arguments = (record.folder, record.mark, parent, parent.rpartition("/")[0])
        return node.run(["sh", "-c", REMOVE, "sh", *arguments], timeout_s=CALL_S).code == 0

    cleaned, failures = try_all(nodes, clean_one, CALL_S + 10)
    for failure in failures.values():
        _log.warning("cleaning up after %s: %s", attempt.run, failure)
    unclean = [*(rank for rank, is_clean in cleaned.items() if not is_clean), *failures]
    return [
        Problem(code=code, severity="warning", node=nodes[rank].name,
                values={"node": nodes[rank].name, "folder": attempt.records[rank].folder})
        for rank in sorted(unclean)
    ]  # fmt: skip
