"""The GPUs while a run uses them, and whether it gave their memory back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time

from .heartbeat import HEARTBEAT_S
from .processes import MARK

GPU_BACK_S = 10.0
"""A driver takes its time to give the memory of a process back."""
GPU_BACK_MIB = 256
GPU_QUERY = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
GPU_KEYS = ("index", "utilization", "memory_used_mib", "memory_total_mib", "power_w", "temperature_c")


class GpuReader(threading.Thread):
    """Asks nvidia-smi again and again beside the supervisor: it takes a second, and hangs with a broken driver."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gpus = []  # type: list[dict[str, float | None]]

    def run(self) -> None:
        while shutil.which("nvidia-smi"):
            self.gpus = read_gpus()
            time.sleep(HEARTBEAT_S)


def read_gpus(timeout_s: float = 30.0) -> list[dict[str, float | None]]:
    """What nvidia-smi says of each GPU now; none where it says nothing."""
    program = shutil.which("nvidia-smi")
    command = [str(program), f"--query-gpu={GPU_QUERY}", "--format=csv,noheader,nounits"]
    try:
        # A mark of its own: it is no member of the run.
        environment = {**os.environ, MARK: "nvidia-smi"}
        answer = (
            subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)
            if program
            else None
        )
        rows = [map(_number, line.split(",")) for line in answer.stdout.splitlines()] if answer else []
        return [dict(zip(GPU_KEYS, row)) for row in rows]  # noqa: B905 - Python 3.8
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


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


def first_gpus(folder: str) -> list[dict[str, float | None]]:
    """What the first heartbeat with GPUs says of them: the run had not yet come to use any."""
    try:
        with open(f"{folder}/gpus") as file:
            gpus = json.load(file)["gpus"]  # type: list[dict[str, float | None]]
            return gpus
    except (OSError, ValueError, KeyError):
        return []


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None
