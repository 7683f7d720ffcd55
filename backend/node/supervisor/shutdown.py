"""End of a run on this node: the last records of its ranks, and the exit record."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import time
from typing import Any, Iterable

from backend.node.container import end_containers

from .files import free_reserve, is_full, write_json
from .kernel_log import gpu_errors
from .processes import Process

RECORD_S = 20.0
"""Time for ranks to write NCCL's flight records. torch checks for requests once a second."""
PIPES = "nccl_wanted_"
"""Start of the names of torch's pipes; `<rank>.pipe` follows. A byte in a pipe requests the rank's flight record."""
RECORDS = "nccl_trace_rank_"
WITH_KERNEL_LOG = ("failed", "stalled", "stopped")
"""Reasons with a report of the kernel log. A stopped node may have the failed GPU, while its ranks only waited."""


def ask_for_records(folder: str) -> None:
    """Request the flight records of all ranks' collectives, and wait for them at most RECORD_S.

    A rank writes its record by itself only when a collective times out, which may be after the stall. A stop ends the
    wait.
    """
    pipes = [pipe for pipe in glob.glob(f"{glob.escape(folder)}/{PIPES}*.pipe") if send_byte(pipe)]
    files = [f"{folder}/{RECORDS}{os.path.basename(pipe)[len(PIPES) : -len('.pipe')]}" for pipe in pipes]
    sizes, deadline = [], time.monotonic() + RECORD_S  # type: tuple[list[int], float]
    while files and time.monotonic() < deadline and not os.path.exists(f"{folder}/control/kill"):
        time.sleep(0.5)
        before, sizes = sizes, [os.path.getsize(file) if os.path.exists(file) else 0 for file in files]
        if all(sizes) and sizes == before:
            break


def send_byte(pipe: str) -> bool:
    """Write a byte to the pipe without waiting. Return whether a process reads the pipe."""
    try:
        handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.write(handle, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(handle)


def has_pipes(folder: str) -> bool:
    """Return whether the file system has named pipes. torch ends a rank whose pipe it cannot create."""
    probe = f"{folder}/.pipe.{secrets.token_hex(4)}"
    try:
        os.mkfifo(probe, 0o600)
        os.unlink(probe)
        return True
    except OSError:
        return False


def containers_left(spec: dict[str, Any]) -> list[Process]:
    """Remove the containers of a run whose processes have ended. Those that are left count as processes with id 0."""
    names = end_containers(spec.get("container"), spec["mark"])
    return [Process(0, 0, 0, 0, "?", name) for name in names]


def drop_secrets(spec: dict[str, Any]) -> None:
    """Remove the secrets' file where the child did not, and its parts that a lost connection left."""
    if spec.get("secrets"):
        folder, name = os.path.split(spec["secrets"])
        for path in (spec["secrets"], *glob.glob(f"{glob.escape(folder)}/.{name}.*")):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def write_exit(folder: str, reason: str, status: int | None, left: Iterable[Process], **more: Any) -> None:
    """Write `exit`, the record of the end.

    - `code`, `signal`: null where unknown.
    - `left`: id, name and state of the processes that could not be ended.
    - `stopped`: a user, a server or the batch system (reason "scheduler") ended the run.
    - `disk_full`: the disk was full, so the reason itself may be missing.
    - `kernel_log`: the result of gpu_errors, where a GPU may have failed.
    - `time`: the program's end.
    - `stuck`: id, name, state and rank of the processes that were stuck at a stall.
    - `gpus`: the result of gpus_given_back.
    - `oom_kills`: the number of processes that the kernel killed because memory ran out.
    - `gone`: what ended before the supervisor could write `exit`: only the supervisor ("supervisor"), or the machine
      ("restart").
    """
    disk_full = is_full(folder)
    free_reserve(folder)
    if reason in WITH_KERNEL_LOG:
        more["kernel_log"] = gpu_errors(folder)
    by_signal = status is not None and status < 0
    content = {
        "code": None if by_signal else status,
        "signal": -status if by_signal and status else None,
        "stopped": reason in ("stopped", "scheduler"),
        "reason": reason,
        "left": [[p.pid, p.name, p.state] for p in left],
        "disk_full": disk_full,
        "time": time.time(),
        **more,
    }
    write_json(f"{folder}/exit", content)
