"""Where a run is put, and what an engine makes of a job there: plain data between launch and engines."""

from collections.abc import Mapping
from dataclasses import dataclass

from backend.job.problems import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlacement:
    """One node of a run, as launch has found it."""

    rank: int
    """Node rank: the order of the job's hosts."""
    folder: str
    """Absolute run folder on that node; the rendered files lie in it."""
    python: str
    """Interpreter of the engine's environment."""
    setup: str | None = None
    """A shell file on the node that the supervisor sources first."""
    interface: str | None = None
    """Network interface towards the master; None lets NCCL and gloo choose."""
    address: str
    """What messages call the node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One attempt of a run on its nodes."""

    run_id: str
    attempt: int
    master_address: str
    """The address of node 0 that every other node can dial."""
    master_port: int
    nodes: tuple[NodePlacement, ...]
    checkpoint: str | None = None
    """The complete checkpoint that the attempt goes on from: its folder, absolute, equal on all nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCommand:
    """What one node starts, and the variables it starts it with."""

    rank: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A job as its engine takes it."""

    files: Mapping[str, str]
    """File name -> text, equal on all nodes."""
    commands: tuple[NodeCommand, ...]
    """One a node, in rank order."""
    notes: tuple[Problem, ...] = ()
    """Where the files differ from the letter of the job, and why."""
