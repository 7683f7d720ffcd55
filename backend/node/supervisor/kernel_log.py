"""GPU errors in the node's kernel log since the start of a run: Xid messages of NVIDIA's driver."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from backend.node.nvidia_smi import find_smi
from backend.node.tools import run_tool

from .files import read_json
from .processes import boot_id

LOG_S = 5.0
"""Time limit of each program that prints the kernel log."""
STAMPED = re.compile(r"^\[ *(\d+\.\d+)\](.*)")
"""Seconds since boot, and the message."""
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+)[^)]*\): (\d+)(?:, *(.*))?")
MOST_XIDS = 20
"""Number of different errors that are kept, the first ones. An error may repeat ten thousand times."""
XID_TEXT = 300


def gpu_errors(folder: str) -> dict[str, Any] | None:
    """Return the GPU errors since the start of the run.

    `xids` has each kind of error of each GPU once, with its first time and its count. Its `gpu` is nvidia-smi's index,
    or null where the index is unknown. `unread` is the reason why the log cannot be read. The function returns None on
    a node without NVIDIA GPUs, and on a machine that restarted during the run.
    """
    keeper = read_json(f"{folder}/pid")
    if not find_smi() or keeper is None or keeper.get("boot") != boot_id():
        return None
    lines, unread = kernel_lines()
    first = read_json(f"{folder}/gpus") or {}
    # Within weeks the log's clock differs from other clocks by minutes. So its own time of the start is better.
    began = first.get("log_end") or keeper["start"] / os.sysconf("SC_CLK_TCK") - 1
    since_start = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    gpus = {gpu["bus"]: gpu["index"] for gpu in first.get("gpus", ()) if gpu.get("bus")}
    xids = {}  # type: dict[tuple[str, int], dict[str, Any]]
    for seconds, text in lines:
        match = XID.search(text)
        if match is None or seconds <= began:
            continue
        bus, xid = match[1].lower(), int(match[2])
        if gpus and bus not in gpus:  # the host's log also has the GPUs of other containers
            continue
        record = {"pci": bus, "gpu": gpus.get(bus), "xid": xid, "count": 0, "time": seconds + since_start}
        xids.setdefault((bus, xid), {**record, "text": (match[3] or "").strip()[:XID_TEXT]})["count"] += 1
    return {"xids": sorted(xids.values(), key=lambda record: record["time"])[:MOST_XIDS], "unread": unread}


def log_end() -> float | None:
    """Return the time of the newest line by the log's own clock. None: the log cannot be read."""
    lines = kernel_lines()[0]
    return lines[-1][0] if lines else None


def kernel_lines() -> tuple[list[tuple[float, str]], str]:
    """Return (seconds since boot, text) of each line from dmesg or else journalctl, or the reason why there is none."""
    code, out, error = run_tool(["dmesg"], LOG_S)
    lines = stamped(out)
    if code == 0:
        return lines, ""
    lines = stamped(run_tool(["journalctl", "-k", "--no-pager", "-o", "short-monotonic"], LOG_S).out)
    # A user who may not read the journal gets an empty journal with status 0.
    return lines, "" if lines else (error.strip() or "dmesg: no answer")[:XID_TEXT]


def stamped(text: str) -> list[tuple[float, str]]:
    return [(float(match[1]), match[2]) for match in map(STAMPED.match, text.splitlines()) if match]
