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
"""Most different errors that are kept, the first ones. A fault may repeat ten thousand times."""
XID_TEXT = 300


def gpu_errors(folder: str) -> dict[str, Any] | None:
    """`xids`: each kind of error of each GPU once, with its first time and how often; `unread`: why the log is unknown.

    `gpu` is nvidia-smi's index, null where the GPU could not be told at the start. None on a node without NVIDIA GPUs,
    and where the machine restarted since.
    """
    me = read_json(f"{folder}/pid")
    if not find_smi() or me is None or me.get("boot") != boot_id():
        return None
    lines, unread = kernel_lines()
    first = read_json(f"{folder}/gpus") or {}
    # The log's clock is no other's: over weeks they part by minutes. Without its own word the start must do.
    began = first.get("log_end") or me["start"] / os.sysconf("SC_CLK_TCK") - 1
    since_start = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    gpus = {gpu["bus"]: gpu["index"] for gpu in first.get("gpus", ()) if gpu.get("bus")}
    found = {}  # type: dict[tuple[str, int], dict[str, Any]]
    for seconds, text in lines:
        match = XID.search(text)
        if match is None or seconds <= began:
            continue
        bus, xid = match[1].lower(), int(match[2])
        if gpus and bus not in gpus:  # another's GPU, which a container sees in the log alone
            continue
        one = {"pci": bus, "gpu": gpus.get(bus), "xid": xid, "count": 0, "time": seconds + since_start}
        found.setdefault((bus, xid), {**one, "text": (match[3] or "").strip()[:XID_TEXT]})["count"] += 1
    return {"xids": sorted(found.values(), key=lambda one: one["time"])[:MOST_XIDS], "unread": unread}


def log_end() -> float | None:
    """Return the time of the newest line by the log's own clock. None: the log cannot be read."""
    lines = kernel_lines()[0]
    return lines[-1][0] if lines else None


def kernel_lines() -> tuple[list[tuple[float, str]], str]:
    """Return (seconds since boot, text) of each line from dmesg or else journalctl, or the reason why there is none."""
    code, out, why = run_tool(["dmesg"], LOG_S)
    lines = stamped(out)
    if code == 0:
        return lines, ""
    lines = stamped(run_tool(["journalctl", "-k", "--no-pager", "-o", "short-monotonic"], LOG_S).out)
    # A user who may not read the journal gets an empty one with status 0.
    return lines, "" if lines else (why.strip() or "dmesg: no answer")[:XID_TEXT]


def stamped(text: str) -> list[tuple[float, str]]:
    return [(float(match[1]), match[2]) for match in map(STAMPED.match, text.splitlines()) if match]
