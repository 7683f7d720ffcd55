"""dataset_info.json on all nodes of a job: shown, checked and changed, so that it says the same on every node.

Nothing is written before every node has accepted the entry. The nodes write one after the other, because they may share
the folder: the first one changes the file, and the others find the new entry in it. Nodes that do not share it get the
entry too, whether they had another version of it or none.
"""

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from backend.cluster.inventory.dataset_info import CHECK_S, READ_S, Entry, check_on, propose_on, read_on, write_on
from backend.cluster.node import Node, NodeError, sftp_path
from backend.cluster.node_group import try_all
from backend.cluster.program_answers.data import DatasetChecked, DatasetInfoRead, DatasetProposal
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.launch.preflight import ConnectedNodes
from backend.runs.tasks.discovery import Discovery

MOST_UPLOAD_BYTES = 8 << 20
"""A file that a page uploads. Larger ones are copied to the node, for example with rsync."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A wish to change one entry."""

    name: str
    entry: Entry | None
    """None removes it."""
    seen: tuple[Entry | None, ...]
    """The versions of the entry that the user saw, on any node; None stands for a node without it.

    A node with another version is not changed: somebody else has changed it since."""


def read(job: Job, connected: ConnectedNodes) -> Discovery[DatasetInfoRead]:
    """Read dataset_info.json of every node."""
    return _ask_all(connected, lambda rank, node: read_on(node, job, rank), READ_S + 10)


def propose(job: Job, connected: ConnectedNodes, path: str) -> Discovery[DatasetProposal]:
    """Propose an entry for a file, from its first rows on the first node that has it."""
    discovery = _ask_all(connected, lambda rank, node: propose_on(node, job, rank, path), READ_S + 10)
    return discovery if not discovery.answers else _without_problems(discovery)


def check(job: Job, connected: ConnectedNodes, name: str, entry: Entry) -> Discovery[DatasetChecked]:
    """Let LLaMA-Factory on every node parse the entry and convert rows of its file."""
    return _ask_all(connected, lambda rank, node: check_on(node, job, rank, name, entry), CHECK_S + 10)


def write(job: Job, connected: ConnectedNodes, change: Change) -> Discovery[bool]:
    """Write a change on every node. Return by rank whether the file changed.

    Raises ProblemsError with nothing written if a node cannot be reached or refuses the entry.
    """
    if connected.problems or connected.unknown_host_keys:
        return Discovery(
            answers={}, nodes={}, unknown_host_keys=connected.unknown_host_keys, problems=connected.problems
        )
    if change.entry is not None:
        checked = check(job, connected, change.name, change.entry)
        if checked.problems:
            raise ProblemsError(checked.problems)
    changed: dict[int, bool] = {}
    problems: list[Problem] = []
    for rank, node in connected.nodes.items():
        try:
            changed[rank] = write_on(node, job, rank, change.name, change.entry, change.seen)
        except NodeError as error:
            error.rank = rank
            problems.append(error.problem)
    names = {rank: connected.nodes[rank].name for rank in changed}
    return Discovery(answers=changed, nodes=names, unknown_host_keys=(), problems=tuple(problems))


def upload(job: Job, connected: ConnectedNodes, name: str, data: bytes) -> Discovery[bool]:
    """Write a new file into the folder of the data sets on every node. Return by rank whether the node lacked it.

    An existing file is never overwritten. Raises NodeError(dataset_file_exists) if it has another content.
    """
    path = posixpath.join(sftp_path(str(job.training.dataset_dir)), name)

    def write_file(_: int, node: Node) -> bool:
        if not node.exists(path):
            node.write(path, data)
            return True
        if node.read(path, limit=len(data) + 1) != data:
            raise NodeError("dataset_file_exists", node.name, field="training.dataset_dir", path=path)
        return False

    written: dict[int, bool] = {}
    problems: list[Problem] = [*connected.problems]
    # One after the other: the nodes may share the folder.
    for rank, node in connected.nodes.items():
        results, failures = try_all({rank: node}, write_file, READ_S)
        written |= results
        problems += [failure.problem for failure in failures.values()]
    names = {rank: connected.nodes[rank].name for rank in written}
    return Discovery(
        answers=written, nodes=names, unknown_host_keys=connected.unknown_host_keys, problems=tuple(problems)
    )


def _ask_all(connected: ConnectedNodes, question: Callable[[int, Node], T], limit_s: float) -> Discovery[T]:
    answers, failures = try_all(connected.nodes, question, limit_s)
    problems = (*(failure.problem for _, failure in sorted(failures.items())), *connected.problems)
    names: Mapping[int, str] = {rank: connected.nodes[rank].name for rank in answers}
    return Discovery(answers=answers, nodes=names, unknown_host_keys=connected.unknown_host_keys, problems=problems)


def _without_problems(discovery: Discovery[T]) -> Discovery[T]:
    first = min(discovery.answers)
    return Discovery(
        answers={first: discovery.answers[first]},
        nodes={first: discovery.nodes[first]},
        unknown_host_keys=(),
        problems=(),
    )
