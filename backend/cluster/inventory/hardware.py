"""Inventory of a node's hardware: GPUs, network, disks and limits of processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backend.cluster.inventory.fabric import Fabric, read_fabric
from backend.cluster.inventory.gpus import Gpus, read_gpus
from backend.cluster.inventory.software import ask_program, outside
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import ends_of_all
from backend.cluster.program_answers.hardware import DiskAnswer, HardwareAnswer
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.launch_rules import environment_of

PROGRAM = "hardware.py"
HARDWARE_S = 45.0
"""nvidia-smi alone may take 20 s."""
SYSTEM_PYTHON = Environment(python="python3")
"""Python of a node whose engine's interpreter is not known yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """File system of a folder, which may not exist yet."""

    free: int
    """Bytes that this user may still write, within the quota that `quota` reports."""
    total: int
    kind: str
    """ext4, nfs4, lustre."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """Hardware of one node."""

    gpus: Gpus
    fabric: Fabric
    shm: int | None
    """Bytes of /dev/shm. None without it."""
    memlock: int | None
    """Bytes that a process may lock in memory. None: unlimited."""
    nofile: int | None
    """Files that a process may open. None: unlimited."""
    cpus: int
    memory_mib: int
    """Memory that its processes may use: the container's limit where there is one."""
    ends_at_logout: bool = False
    """Whether the node ends all processes of a log-in with it. Then a run ends with the connection."""
    disks: Mapping[str, Disk] = field(default_factory=dict)
    """By folder."""


def read_all_hardware(job: Job, nodes: Mapping[int, Node]) -> dict[int, Hardware | NodeError]:
    """Return the hardware of every node of a job, or the error, by rank."""
    return ends_of_all(nodes, lambda rank, node: read_node_hardware(job, rank, node), HARDWARE_S + 10)


def read_node_hardware(job: Job, rank: int, node: Node) -> Hardware:
    """Read a node with the engine's Python, whose setup may add tools, or with the system's where that does not run."""
    environment, folder = environment_of(job, rank), job.training.output_dir
    folders = [folder] if folder else []
    if environment is not None:
        try:
            return read_hardware(node, outside(environment), folders)
        except NodeError as error:
            if error.code != "bad_answer":
                raise
    return read_hardware(node, None, folders)


def read_hardware(node: Node, environment: Environment | None, folders: Sequence[str] = ()) -> Hardware:
    """Read a node with the environment's Python or the system's. Raises NodeError."""
    question = {"folders": list(folders)}
    answer = ask_program(node, environment or SYSTEM_PYTHON, HardwareAnswer, PROGRAM, "hardware", question, HARDWARE_S)
    try:
        return parse_hardware(answer)
    except ValueError as error:  # an invalid address
        raise NodeError("bad_answer", node.name, command=PROGRAM, exit=0, detail=str(error)[:200]) from error


def parse_hardware(answer: HardwareAnswer) -> Hardware:
    """Parse hardware.py's answer. Raises ValueError if an address is invalid."""
    shm = answer.get("shm")
    return Hardware(
        gpus=read_gpus(answer.get("smi"), answer["owners"]),
        fabric=read_fabric(answer["rdma"], answer["interfaces"], answer["default_routes"]),
        shm=shm["total"] if shm else None,
        memlock=_limit(answer["memlock"]),
        nofile=_limit(answer["nofile"]),
        cpus=answer["cpus"],
        memory_mib=answer["memory_mib"],
        ends_at_logout=answer["ends_at_logout"],
        disks={folder: _disk(disk, answer["quota"]) for folder, disk in answer["disks"].items()},
    )


def _limit(value: int) -> int | None:
    return value if 0 <= value < 1 << 62 else None


def _disk(answer: DiskAnswer, quota: str) -> Disk:
    left = _quota_left(quota, answer["source"])
    free = answer["free"] if left is None else min(answer["free"], left)
    return Disk(free=free, total=answer["total"], kind=answer["kind"])


def _quota_left(text: str, source: str) -> int | None:
    """Return the bytes left by `quota -w -p`: file system, KiB in use (`*`: too many), soft and hard limit."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0] == source and all(word.rstrip("*").isdecimal() for word in words[1:4]):
            used, soft, hard = (int(word.rstrip("*")) for word in words[1:4])
            return max(0, (hard or soft) - used) << 10 if hard or soft else None
    return None
