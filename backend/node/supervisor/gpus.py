"""GPU figures during a run, and whether the run released their memory."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from backend.node.nvidia_smi import find_smi, read_buses, read_gpus

from .heartbeat import HEARTBEAT_S
from .kernel_log import log_end

GPU_BACK_S = 10.0
"""Time that a driver needs to release the memory of a process."""
GPU_BACK_MIB = 256


class GpuReader(threading.Thread):
    """Thread that runs nvidia-smi repeatedly. A call takes a second, and hangs with a broken driver."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gpus = []  # type: list[dict[str, float | None]]
        self.buses = {}  # type: dict[float, str]
        self.log_end = None  # type: float | None

    def run(self) -> None:
        if find_smi():
            self.log_end = log_end()
        while find_smi():
            self.buses = self.buses or read_buses()
            self.gpus = read_gpus()
            time.sleep(HEARTBEAT_S)

    def named(self) -> list[dict[str, Any]]:
        """Return the GPUs, each with its PCI address in the kernel log."""
        return [{**gpu, "bus": self.buses.get(gpu["index"] or 0.0)} for gpu in self.gpus]


def gpus_given_back(folder: str) -> list[list[float]]:
    """Wait until the GPUs' memory is free or GPU_BACK_S is over. Return [index, MiB at start, MiB now] of each GPU."""
    began = {gpu["index"]: gpu["memory_used_mib"] or 0.0 for gpu in first_gpus(folder)}
    deadline = time.monotonic() + GPU_BACK_S
    while began:
        now = [(gpu["index"], gpu["memory_used_mib"] or 0.0) for gpu in read_gpus(GPU_BACK_S) if gpu["index"] in began]
        if all(used <= began[index] + GPU_BACK_MIB for index, used in now) or time.monotonic() > deadline:
            return [[index or 0.0, began[index], used] for index, used in now]
        time.sleep(0.5)
    return []


def first_gpus(folder: str) -> list[dict[str, Any]]:
    """Return the GPUs of the first heartbeat with GPUs. The run did not use them yet."""
    try:
        with open(f"{folder}/gpus") as file:
            gpus = json.load(file)["gpus"]  # type: list[dict[str, Any]]
            return gpus
    except (OSError, ValueError, KeyError):
        return []
