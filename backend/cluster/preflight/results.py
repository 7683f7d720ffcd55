"""Results of preflight checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from backend.cluster.node import NodeError
from backend.job.problems import Problem

Status = Literal["ok", "warning", "failure", "skipped"]
CheckName = Literal[
    "cordon",
    "login",
    "python",
    "gpus",
    "gpus_free",
    "gpu_memory",
    "cuda",
    "shm",
    "limits",
    "logout",
    "container",
    "engine",
    "metrics",
    "configuration",
    "deepspeed",
    "model",
    "dataset",
    "tracker",
    "run_root",
    "output_dir",
    "space",
    "lock",
    "versions",
    "machines",
    "model_equal",
    "data_equal",
    "output_shared",
    "clock",
    "interface",
    "rdma",
    "master_port",
    "scheduler",
    "time_limit",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The result of one check of one node. The catalogue has its title as `check.<name>`."""

    name: CheckName
    status: Status
    rank: int
    node: str
    values: Mapping[str, object] = field(default_factory=dict)
    """The figures that the check read."""
    problem: Problem | None = None
    """A failure and a warning always have one. A skipped check may have a note."""


class Checks:
    """Builds the results of one node."""

    def __init__(self, rank: int, node: str) -> None:
        self.rank = rank
        self.node = node

    @property
    def address_field(self) -> str:
        """Return the job path of the node's address."""
        return f"cluster.hosts[{self.rank}].address"

    def ok(self, name: CheckName, **values: object) -> CheckResult:
        return CheckResult(name=name, status="ok", rank=self.rank, node=self.node, values=values)

    def skipped(self, name: CheckName, problem: Problem | None = None) -> CheckResult:
        return CheckResult(name=name, status="skipped", rank=self.rank, node=self.node, problem=problem)

    def failed(self, name: CheckName, problem: Problem) -> CheckResult:
        return CheckResult(name=name, status="failure", rank=self.rank, node=self.node, problem=problem)

    def wrong(self, name: CheckName, code: str, field: str, **values: object) -> CheckResult:
        problem = Problem(code=code, field=field, node=self.node, values={"node": self.node, **values})
        return self.failed(name, problem)

    def warning(self, name: CheckName, code: str, field: str, **values: object) -> CheckResult:
        values = {"node": self.node, **values}
        problem = Problem(code=code, field=field, severity="warning", node=self.node, values=values)
        return CheckResult(name=name, status="warning", rank=self.rank, node=self.node, problem=problem)

    def raised(self, name: CheckName, error: NodeError) -> CheckResult:
        error.rank = self.rank
        return self.failed(name, error.problem)
