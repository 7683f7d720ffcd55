"""The checkpoints of a run, as its nodes see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.cluster.group import on_all
from backend.cluster.node import Node, NodeError
from backend.cluster.probe import ask_program, needed_environment
from backend.engines.checkpoints import Saved
from backend.job.job import Job

PROGRAM = "checkpoint_files.py"
LOOK_S = 120.0
"""A checkpoint of 256 ranks has more than a thousand files, and a shared disk may be slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What one node sees of a run's results."""

    folder: str
    """Absolute."""
    steps: Mapping[int, Saved]


def look(job: Job, nodes: Mapping[int, Node], folder: str) -> dict[int, Seen]:
    """The checkpoints in `folder`, by node rank. Raises GroupError."""
    answers = on_all(nodes, lambda rank, node: _ask(job, rank, node, "look", {"folder": folder}), LOOK_S + 10)
    return {rank: _read(answer) for rank, answer in answers.items()}


def set_aside(job: Job, nodes: Mapping[int, Node], folder: str, steps: Sequence[int], prefix: str) -> None:
    """Rename the checkpoints of `steps` on every node that sees them: engines take the newest folder they find.

    Raises GroupError.
    """
    wanted = {"folder": folder, "steps": list(steps), "prefix": prefix}
    on_all(nodes, lambda rank, node: _ask(job, rank, node, "set_aside", wanted), LOOK_S + 10)


def _ask(job: Job, rank: int, node: Node, action: str, wanted: Mapping[str, object]) -> Mapping[str, Any]:
    answer = ask_program(node, needed_environment(job, rank, node), PROGRAM, action, wanted, LOOK_S)
    if "error" in answer:
        raise NodeError("node_io", node.name, path=str(wanted["folder"]), detail=answer["error"])
    return answer


def _read(answer: Mapping[str, Any]) -> Seen:
    steps = {
        int(step): Saved(files=frozenset(saved["files"]), damaged=tuple(saved["damaged"]))
        for step, saved in answer["checkpoints"].items()
    }
    return Seen(folder=answer["folder"], steps=steps)
