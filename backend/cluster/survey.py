"""What a node is made of: its GPUs, its network, and the room that training needs beside memory."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.cluster.fabric import Fabric, read_fabric
from backend.cluster.gpus import Gpus, read_gpus
from backend.cluster.node import Node, ask
from backend.cluster.probe import python_command
from backend.job.cluster import Environment

SURVEY = Path(__file__).with_name("survey_node.py")
SURVEY_S = 45.0
"""nvidia-smi alone may take 20 s."""
SYSTEM_PYTHON = Environment(python="python3")
"""For a node whose engine's interpreter is not known yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """The file system that a folder lies on, or will lie on."""

    folder: str
    """The nearest one that exists."""
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
    disks: Mapping[str, Disk] = field(default_factory=dict)
    """By the folder that was asked about."""


def survey(node: Node, environment: Environment | None, folders: Sequence[str] = ()) -> Survey:
    """Ask a node, by the environment's Python or the system's. NodeError."""
    argv = python_command(environment or SYSTEM_PYTHON, ["-", "survey", json.dumps({"folders": list(folders)})])
    return read_survey(ask(node, argv, timeout_s=SURVEY_S, stdin=SURVEY.read_bytes()))


def read_survey(answer: Mapping[str, Any]) -> Survey:
    """From survey_node.py's answer."""
    shm = answer["shm"]
    return Survey(
        gpus=read_gpus(answer["smi"], answer["owners"]),
        fabric=read_fabric(answer["rdma"], answer["interfaces"], answer["default_routes"]),
        shm=shm["total"] if shm else None,
        memlock=_limit(answer["memlock"]),
        nofile=_limit(answer["nofile"]),
        cpus=answer["cpus"],
        memory_mib=answer["memory_mib"],
        disks={folder: _disk(found, answer["quota"]) for folder, found in answer["disks"].items()},
    )


def _limit(value: int) -> int | None:
    return value if 0 <= value < 1 << 62 else None


def _disk(found: Mapping[str, Any], quota: str) -> Disk:
    left = _quota_left(quota, found["source"])
    free = found["free"] if left is None else min(found["free"], left)
    return Disk(folder=found["folder"], free=free, total=found["total"], kind=found["kind"])


def _quota_left(text: str, source: str) -> int | None:
    """Bytes, from `quota -w -p`: file system, KiB in use (starred beyond the quota), soft and hard limit."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0] == source and all(word.rstrip("*").isdigit() for word in words[1:4]):
            used, soft, hard = (int(word.rstrip("*")) for word in words[1:4])
            return max(0, (hard or soft) - used) << 10 if hard or soft else None
    return None
