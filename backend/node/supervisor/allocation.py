"""A node of a batch system's allocation: its rank, the master that the batch script names, and the interface."""

from __future__ import annotations

import os
from typing import Any

from backend.node.interface import find_interface

NODE_RANK = "SLURM_NODEID"
"""Slurm's number of the node in the allocation: 0, 1, ... in the order of the node list."""
MASTER = "MEGABOARD_MASTER_ADDRESS"
"""Set by the batch script: the first node of the allocation."""
INTERFACES = (("NCCL_SOCKET_IFNAME", "="), ("GLOO_SOCKET_IFNAME", ""))
"""Variable and the prefix of its value. NCCL reads a name without "=" as a prefix."""


def folder_of_node(attempt_folder: str) -> str:
    """Return the run folder of the node that this task runs on."""
    return f"{attempt_folder}/node{int(os.environ[NODE_RANK])}"


def allocated_argv(spec: dict[str, Any]) -> list[str]:
    """Return the program's arguments. Those that name a variable of the allocation become its value."""
    names = spec.get("from_environment", ())
    return [os.environ[word] if word in names else word for word in spec["argv"]]


def set_interface(spec: dict[str, Any]) -> None:
    """Set the variables of the interface towards the master, unless the job sets them."""
    if MASTER not in spec.get("from_environment", ()):
        return
    name = find_interface(os.environ[MASTER])
    for variable, prefix in INTERFACES if name else ():
        os.environ.setdefault(variable, f"{prefix}{name}")
