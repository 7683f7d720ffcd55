"""What the checks read: the answers of one node, and the answers of all nodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from backend.cluster.inventory.hardware import Hardware
from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Node, NodeError
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.preflight.results import CheckResult, Checks
from backend.cluster.program_answers.checks import Lock, Paths
from backend.engines import Rendered
from backend.job.job import Job

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeReadings:
    """Answers of one node whose Python runs. The properties raise the NodeError of a question without an answer."""

    job: Job
    checks: Checks
    facts: NodeFacts
    hardware_answer: Hardware | NodeError
    paths_answer: Paths | NodeError
    lock_answer: Lock | NodeError
    secret_names: frozenset[str] = frozenset()
    """Names of the secrets that the ranks will get."""

    @property
    def hardware(self) -> Hardware:
        return _answer(self.hardware_answer)

    @property
    def paths(self) -> Paths:
        return _answer(self.paths_answer)

    @property
    def lock(self) -> Lock:
        return _answer(self.lock_answer)


@dataclass(frozen=True, kw_only=True, slots=True)
class GangReadings:
    """Answers of all nodes, by rank. `nodes` and `facts` have the connected nodes whose Python runs."""

    job: Job
    checks: Mapping[int, Checks]
    """Of every node of the job."""
    nodes: Mapping[int, Node]
    facts: Mapping[int, NodeFacts]
    hardware: Mapping[int, Hardware]
    port: int
    render: Callable[[], Rendered] | None
    """Returns the files that a launch would write; all nodes have to be in `facts`. None: do not ask the engine."""
    results: Sequence[CheckResult]
    """Results of the checks before this one."""
    accepted: AcceptedConfigurations = field(default_factory=AcceptedConfigurations)
    """Configurations that the engine need not parse again."""


def _answer(answer: T | NodeError) -> T:
    if isinstance(answer, NodeError):
        raise answer
    return answer
