"""Checkpoints of a run on each of its nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from backend.cluster.inventory.software import ask_program, needed_environment, outside
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import on_all
from backend.cluster.program_answers.checks import Checkpoints, SetAside
from backend.engines.checkpoints import Saved
from backend.job.job import Job

T = TypeVar("T", Checkpoints, SetAside)

PROGRAM = "checkpoint_files.py"
LIST_BYTES = 16 << 20
"""Enough for the names of 200,000 files. 100 checkpoints of 256 ranks have about 50,000."""
READ_S = 120.0
"""Time to read one node. A checkpoint of 256 ranks has more than 1000 files, and a shared disk may be slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCheckpoints:
    """Checkpoints of a run that one node sees."""

    folder: str
    """Absolute path of the output folder."""
    steps: Mapping[int, Saved]


def read_checkpoints(job: Job, nodes: Mapping[int, Node], folder: str) -> dict[int, NodeCheckpoints]:
    """Return the checkpoints in `folder`, by node rank. Raises GroupError."""
    return on_all(nodes, lambda rank, node: _read_node(job, rank, node, folder), READ_S + 10)


def set_aside(job: Job, nodes: Mapping[int, Node], folder: str, steps: Sequence[int], prefix: str) -> None:
    """Rename the checkpoints of `steps` on every node that sees them, so that engines do not resume from them.

    Engines take the newest folder. Raises GroupError.
    """
    question = {"folder": folder, "steps": list(steps), "prefix": prefix}
    on_all(nodes, lambda rank, node: _ask(job, rank, node, SetAside, "set_aside", question), READ_S + 10)


def _read_node(job: Job, rank: int, node: Node, folder: str) -> NodeCheckpoints:
    answer = _ask(job, rank, node, Checkpoints, "list", {"folder": folder})
    if "folder" not in answer or "checkpoints" not in answer:
        raise NodeError("bad_answer", node.name, command=PROGRAM, exit=0, detail="checkpoints are missing")
    steps = {
        int(step): Saved(files=frozenset(saved["files"]), damaged=tuple(saved["damaged"]))
        for step, saved in answer["checkpoints"].items()
    }
    return NodeCheckpoints(folder=answer["folder"], steps=steps)


def _ask(job: Job, rank: int, node: Node, shape: type[T], action: str, question: Mapping[str, object]) -> T:
    environment = outside(needed_environment(job, rank, node))
    answer = ask_program(node, environment, shape, PROGRAM, action, question, READ_S, max_bytes=LIST_BYTES)
    if "error" in answer:
        raise NodeError("node_io", node.name, path=str(question["folder"]), detail=answer["error"])
    return answer
