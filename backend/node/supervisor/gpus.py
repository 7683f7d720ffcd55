"""The GPUs while a run uses them, and whether it gave their memory back."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from typing import Any

from .heartbeat import HEARTBEAT_S
from .kernel_log import log_end
from .tools import said

GPU_BACK_S = 10.0
"""A driver takes its time to give the memory of a process back."""
GPU_BACK_MIB = 256
ASK_S = 30.0
"""nvidia-smi answers after seconds where persistence mode is off."""
GPU_QUERY = (
    "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,clocks.sm,clocks_throttle_reasons.active"
)
GPU_KEYS = (
    "index",
    "utilization",
    "memory_used_mib",
    "memory_total_mib",
    "power_w",
    "temperature_c",
    "clock_mhz",
    "clock_limits",  # the bits of nvml.h's nvmlClocksEventReasons; drivers take their older name, too
)


class GpuReader(threading.Thread):
    """Asks nvidia-smi again and again beside the supervisor: it takes a second, and hangs with a broken driver."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gpus = []  # type: list[dict[str, float | None]]
        self.buses = {}  # type: dict[float, str]
        self.log_end = None  # type: float | None

    def run(self) -> None:
        if shutil.which("nvidia-smi"):
            self.log_end = log_end()
        while shutil.which("nvidia-smi"):
            self.buses = self.buses or read_buses()
            self.gpus = read_gpus()
            time.sleep(HEARTBEAT_S)

    def named(self) -> list[dict[str, Any]]:
        """The GPUs, each with the PCI address that the kernel log calls it by."""
        return [{**gpu, "bus": self.buses.get(gpu["index"] or 0.0)} for gpu in self.gpus]


def read_gpus(timeout_s: float = ASK_S) -> list[dict[str, float | None]]:
    """What nvidia-smi says of each GPU now; none where it says nothing, or only why not."""
    for keys in (GPU_KEYS, GPU_KEYS[:-1]):
        query = ",".join(GPU_QUERY.split(",")[: len(keys)])
        out = said(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"], timeout_s)[1]
        if "is not a valid field" not in out:  # the last has two names, and one of them may go
            break
    rows = [list(map(read_number, line.split(","))) for line in out.splitlines()]
    whole = [row for row in rows if len(row) == len(keys) and row[0] is not None]
    return [dict(zip(keys, row)) for row in whole]


def read_buses() -> dict[float, str]:
    """Index of each GPU -> its PCI address as the kernel writes it: 0000:83:00 for nvidia-smi's 00000000:83:00.0."""
    found, command = {}, ["nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader"]
    for line in said(command, ASK_S)[1].splitlines():
        index, _, bus = line.partition(",")
        match = re.search(r"([0-9A-Fa-f]{4}:[0-9A-Fa-f]+:[0-9A-Fa-f]+)\.\d+ *$", bus)
        if match and index.strip().isdigit():
            found[float(index)] = match[1].lower()
    return found


def gpus_given_back(folder: str) -> list[list[float]]:
    """[index, MiB in use when the run began, MiB in use now] of each GPU, once it is back or does not come back."""
    began = {gpu["index"]: gpu["memory_used_mib"] or 0.0 for gpu in first_gpus(folder)}
    deadline = time.monotonic() + GPU_BACK_S
    while began:
        now = [(gpu["index"], gpu["memory_used_mib"] or 0.0) for gpu in read_gpus(GPU_BACK_S) if gpu["index"] in began]
        if all(used <= began[index] + GPU_BACK_MIB for index, used in now) or time.monotonic() > deadline:
            return [[index or 0.0, began[index], used] for index, used in now]
        time.sleep(0.5)
    return []


def first_gpus(folder: str) -> list[dict[str, Any]]:
    """What the first heartbeat with GPUs says of them: the run had not yet come to use any."""
    try:
        with open(f"{folder}/gpus") as file:
            gpus = json.load(file)["gpus"]  # type: list[dict[str, Any]]
            return gpus
    except (OSError, ValueError, KeyError):
        return []


def read_number(text: str) -> float | None:
    try:
        return float(int(text, 16)) if text.strip().startswith("0x") else float(text)
    except ValueError:  # "[N/A]"
        return None
