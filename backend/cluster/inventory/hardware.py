"""What a node is made of: its GPUs, its network, and the room that training needs beside memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backend.cluster.inventory.fabric import Fabric, read_fabric
from backend.cluster.inventory.gpus import Gpus, read_gpus
from backend.cluster.inventory.software import ask_program
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import ends_of_all
from backend.cluster.program_answers import DiskAnswer, Surveyed
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.launch_rules import environment_of

SURVEY = "hardware.py"
SURVEY_S = 45.0
"""nvidia-smi alone may take 20 s."""
SYSTEM_PYTHON = Environment(python="python3")
"""For a node whose engine's interpreter is not known yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """The file system that a folder lies on, or will lie on."""

    free: int
    """Bytes that this user may still write: the quota counts, where `quota` tells it."""
    total: int
    kind: str
    """ext4, nfs4, lustre."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """One node."""

    gpus: Gpus
    fabric: Fabric
    shm: int | None
    """Bytes of /dev/shm; None where there is none."""
    memlock: int | None
    """Bytes that a process may lock in memory; None: unlimited."""
    nofile: int | None
    """Files that a process may open; None: unlimited."""
    cpus: int
    memory_mib: int
    """What its processes may use: a container's limit where there is one."""
    ends_at_logout: bool = False
    """What a log-in leaves behind is ended with it: a run would not outlive the connection."""
    disks: Mapping[str, Disk] = field(default_factory=dict)
    """By the folder that was asked about."""


def survey_all(job: Job, nodes: Mapping[int, Node]) -> dict[int, Survey | NodeError]:
    """What every node of a job is made of, by rank, or why that is not known."""
    return ends_of_all(nodes, lambda rank, node: survey_one(job, rank, node), SURVEY_S + 10)


def survey_one(job: Job, rank: int, node: Node) -> Survey:
    """By the engine's Python, whose setup may bring tools, as at a launch; by the system's where that does not run."""
    environment, folder = environment_of(job, rank), job.training.output_dir
    folders = [folder] if folder else []
    if environment is not None:
        try:
            return survey(node, environment, folders)
        except NodeError as error:
            if error.code != "bad_answer":
                raise
    return survey(node, None, folders)


def survey(node: Node, environment: Environment | None, folders: Sequence[str] = ()) -> Survey:
    """Ask a node, by the environment's Python or the system's. NodeError."""
    wanted = {"folders": list(folders)}
    answer = ask_program(node, environment or SYSTEM_PYTHON, Surveyed, SURVEY, "survey", wanted, SURVEY_S)
    try:
        return read_survey(answer)
    except ValueError as error:  # an invalid address
        raise NodeError("bad_answer", node.name, command=SURVEY, exit=0, detail=str(error)[:200]) from error


def read_survey(answer: Surveyed) -> Survey:
    """From hardware.py's answer; ValueError if an address is invalid."""
    shm = answer.get("shm")
    return Survey(
        gpus=read_gpus(answer.get("smi"), answer["owners"]),
        fabric=read_fabric(answer["rdma"], answer["interfaces"], answer["default_routes"]),
        shm=shm["total"] if shm else None,
        memlock=_limit(answer["memlock"]),
        nofile=_limit(answer["nofile"]),
        cpus=answer["cpus"],
        memory_mib=answer["memory_mib"],
        ends_at_logout=answer["ends_at_logout"],
        disks={folder: _disk(found, answer["quota"]) for folder, found in answer["disks"].items()},
    )


def _limit(value: int) -> int | None:
    return value if 0 <= value < 1 << 62 else None


def _disk(found: DiskAnswer, quota: str) -> Disk:
    left = _quota_left(quota, found["source"])
    free = found["free"] if left is None else min(found["free"], left)
    return Disk(free=free, total=found["total"], kind=found["kind"])


def _quota_left(text: str, source: str) -> int | None:
    """Bytes, from `quota -w -p`: file system, KiB in use (starred beyond the quota), soft and hard limit."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0] == source and all(word.rstrip("*").isdecimal() for word in words[1:4]):
            used, soft, hard = (int(word.rstrip("*")) for word in words[1:4])
            return max(0, (hard or soft) - used) << 10 if hard or soft else None
    return None
