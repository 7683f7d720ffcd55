"""End of a run on this node: the last records of its ranks, and the exit record."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import time
from typing import Any, Iterable

from .files import free_reserve, is_full, write_json
from .kernel_log import gpu_errors
from .processes import Process

RECORD_S = 20.0
"""Time for ranks to write NCCL's flight records. torch checks for requests once a second."""
PIPES = "nccl_wanted_"
"""torch makes a pipe of it for each rank, `<rank>.pipe` behind it; a byte there asks for the rank's flight record."""
RECORDS = "nccl_trace_rank_"
WITH_KERNEL_LOG = ("failed", "stalled", "stopped")
"""A node that is stopped with the others may be the one whose GPU failed, and whose ranks only waited."""


def ask_for_records(folder: str) -> None:
    """Wait until every rank that listens has written the flight record of its collectives, or takes too long.

    By itself it does so when a collective times out; a stall may be seen before. Who stops the run waits for none.
    """
    asked = [pipe for pipe in glob.glob(f"{glob.escape(folder)}/{PIPES}*.pipe") if send_byte(pipe)]
    files = [f"{folder}/{RECORDS}{os.path.basename(pipe)[len(PIPES) : -len('.pipe')]}" for pipe in asked]
    sizes, deadline = [], time.monotonic() + RECORD_S  # type: tuple[list[int], float]
    while files and time.monotonic() < deadline and not os.path.exists(f"{folder}/control/kill"):
        time.sleep(0.5)
        before, sizes = sizes, [os.path.getsize(file) if os.path.exists(file) else 0 for file in files]
        if all(sizes) and sizes == before:
            break


def send_byte(pipe: str) -> bool:
    """Return whether a process reads the pipe. It does not wait."""
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
    """Whether the file system has named pipes: torch, told to make one where there are none, takes the rank with it."""
    probe = f"{folder}/.pipe.{secrets.token_hex(4)}"
    try:
        os.mkfifo(probe, 0o600)
        os.unlink(probe)
        return True
    except OSError:
        return False


def drop_secrets(spec: dict[str, Any]) -> None:
    """Remove the file where the child did not, and what a connection that broke left of one on its way."""
    if spec.get("secrets"):
        folder, name = os.path.split(spec["secrets"])
        for path in (spec["secrets"], *glob.glob(f"{glob.escape(folder)}/.{name}.*")):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def write_exit(folder: str, reason: str, status: int | None, left: Iterable[Process], **more: Any) -> None:
    """`code` and `signal` are null where unknown; `left`: id, name and state of what could not be ended.

    `more`: `time` when the program ended, `stuck` as `left` but of what stood still at a stall, and its rank, `gpus` as
    gpus_given_back, `gone` where the supervisor ended before it could write this: itself alone ("supervisor") or the
    machine ("restart"). `kernel_log`: gpu_errors, where something went wrong or may have. `disk_full`: nobody could
    write any more, the reason itself not either.
    """
    disk_full = is_full(folder)
    free_reserve(folder)
    if reason in WITH_KERNEL_LOG:
        more["kernel_log"] = gpu_errors(folder)
    by_signal = status is not None and status < 0
    content = {
        "code": None if by_signal else status,
        "signal": -status if by_signal and status else None,
        "stopped": reason == "stopped",
        "reason": reason,
        "left": [[p.pid, p.name, p.state] for p in left],
        "disk_full": disk_full,
        "time": time.time(),
        **more,
    }
    write_json(f"{folder}/exit", content)
