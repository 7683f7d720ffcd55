"""What a check says, and the checks of one node: pure, from what the node answered."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from backend.cluster.inventory.gpus import Gpus
from backend.cluster.node import NodeError
from backend.cluster.program_answers import Lock, Paths
from backend.job.job import Job
from backend.job.presets import READING, least_gpu, usable_gib
from backend.job.problems import Problem

LOCKS = "locks"
"""The folder in the run root that says which run uses which node."""
Status = Literal["ok", "warning", "failure", "skipped"]
CheckName = Literal[
    "login",
    "python",
    "gpus",
    "gpus_free",
    "gpu_memory",
    "cuda",
    "shm",
    "limits",
    "logout",
    "engine",
    "configuration",
    "deepspeed",
    "model",
    "dataset",
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
]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """One line of the preflight. Its title is the catalogue's `check.<name>`."""

    name: CheckName
    status: Status
    rank: int
    node: str
    values: Mapping[str, object] = field(default_factory=dict)
    """What was found, for whoever wants to see it."""
    problem: Problem | None = None
    """What is wrong; there is one whenever the status is failure or warning."""


class Checks:
    """Makes the results of one node."""

    def __init__(self, rank: int, node: str) -> None:
        self.rank = rank
        self.node = node

    def ok(self, name: CheckName, **values: object) -> CheckResult:
        return CheckResult(name=name, status="ok", rank=self.rank, node=self.node, values=values)

    def skipped(self, name: CheckName) -> CheckResult:
        return CheckResult(name=name, status="skipped", rank=self.rank, node=self.node)

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


def check_gpu_memory(job: Job, checks: Checks, found: Gpus) -> list[CheckResult]:
    """Whether the node's GPUs have what the plan counts with; nothing where nvidia-smi does not tell."""
    read = [gpu.memory_mib / 1024 for gpu in found.gpus if gpu.memory_mib is not None]
    if not read:
        return []
    least, counted = usable_gib(min(read)), least_gpu(job.cluster).memory_gib
    if least >= (1 - READING) * counted:
        return [checks.ok("gpu_memory", gib=round(least, 2))]
    values = {"least": round(least, 1), "counted": round(counted, 1), "read": round(min(read), 2)}
    field = f"cluster.hosts[{checks.rank}].gpu_memory_gib"
    return [checks.warning("gpu_memory", "gpu_memory_below", field, **values)]


def check_model(job: Job, checks: Checks, found: Paths) -> CheckResult:
    """Whether the model's folder has a config.json."""
    if not found["model"]:
        return checks.wrong("model", "model_missing", "model.path", path=job.model.path)
    return checks.ok("model", path=job.model.path)


def check_dataset(job: Job, checks: Checks, found: Paths) -> CheckResult:
    """Whether every data set is described and its file is there."""
    if job.traits.environment == "swift":
        # They are plain files, which ms-swift's own parser looks for.
        return checks.ok("dataset", names=dataset_names(job))
    dataset, folder = found["dataset"], job.training.dataset_dir
    if not dataset["info"]:
        return checks.wrong("dataset", "dataset_info_missing", "training.dataset_dir", path=folder)
    if dataset["unknown"]:
        return checks.wrong("dataset", "dataset_unknown", "training.dataset", names=dataset["unknown"], path=folder)
    if dataset["missing"]:
        return checks.wrong("dataset", "dataset_file_missing", "training.dataset", paths=dataset["missing"])
    return checks.ok("dataset", names=dataset_names(job))


def check_writable(job: Job, checks: Checks, found: Paths) -> list[CheckResult]:
    """Whether the run folder and the output can be written."""
    results = []
    places: tuple[tuple[CheckName, str, tuple[str, ...]], ...] = (
        ("run_root", "cluster.run_root", run_folders(job)),
        ("output_dir", "training.output_dir", (job.training.output_dir or "",)),
    )
    for name, where, paths in places:
        bad = next((path for path in paths if found["not_writable"].get(path)), None)
        detail = found["not_writable"].get(bad or "")
        results.append(
            checks.wrong(name, "not_writable", where, path=bad, detail=detail)
            if bad
            else checks.ok(name, path=paths[0])
        )
    return results


def run_folders(job: Job) -> tuple[str, ...]:
    """Where a run writes besides its output; the locks may be another user's who shares the run root."""
    return job.cluster.run_root, posixpath.join(job.cluster.run_root, LOCKS)


def check_lock(checks: Checks, answer: Lock) -> CheckResult:
    """Whether no other run uses the node."""
    holder = answer.get("holder")
    if holder:
        return checks.wrong("lock", "node_locked", f"cluster.hosts[{checks.rank}].address", run=holder["run"])
    return checks.ok("lock")


def dataset_names(job: Job) -> list[str]:
    return [name.strip() for name in (job.training.dataset or "").split(",") if name.strip()]
