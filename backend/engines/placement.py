"""Placement of a run and the files of a job there: plain data between launch and engines."""

from collections.abc import Mapping
from dataclasses import dataclass

from backend.job.problems import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlacement:
    """One node of a run: its paths and its network interface."""

    rank: int
    """Node rank: the order of the job's hosts."""
    folder: str
    """Absolute run folder on that node, with the rendered files."""
    python: str
    """Interpreter of the engine's environment."""
    setup: str | None = None
    """A shell file on the node that the supervisor sources first."""
    interface: str | None = None
    """Network interface towards the master; None lets NCCL and gloo choose."""
    address: str
    """Name of the node in messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One attempt of a run on its nodes."""

    run_id: str
    attempt: int
    master_address: str
    """The address of node 0 that every other node can connect to."""
    master_port: int
    nodes: tuple[NodePlacement, ...]
    checkpoint: str | None = None
    """The complete checkpoint from which the attempt resumes: its absolute folder, equal on all nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCommand:
    """Command of one node, and its environment variables."""

    rank: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A job in the form that its engine reads."""

    files: Mapping[str, str]
    """File name -> text, equal on all nodes."""
    commands: tuple[NodeCommand, ...]
    """One command per node, in rank order."""
    notes: tuple[Problem, ...] = ()
    """Notes on where the files differ from the job, and why."""
