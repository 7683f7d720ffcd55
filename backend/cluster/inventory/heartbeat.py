"""Heartbeat of a node that runs no supervisor of ours. The script only reads."""

import time
from collections.abc import Sequence
from typing import Any

from backend.cluster.node import Node
from backend.node.nvidia_smi import CSV, SAMPLE, SMI_FOLDERS, read_figure, read_sample

HEARTBEAT_S = 20.0
_SCRIPT = f"""\
cat /proc/loadavg
grep -E '^Mem(Total|Available):' /proc/meminfo
df -Pk -- "$0" 2> /dev/null | tail -n 1
PATH=$PATH:{":".join(SMI_FOLDERS)}
command -v nvidia-smi > /dev/null && timeout 10 nvidia-smi --query-gpu={",".join(SAMPLE.values())} {CSV}
exit 0
"""


def read_heartbeat(node: Node, folder: str) -> dict[str, Any]:
    """Return an unchecked heartbeat without members: load, memory, GPUs and the disk of `folder`. Raises NodeError."""
    result = node.run(["sh", "-c", _SCRIPT, folder], timeout_s=HEARTBEAT_S)
    return parse_heartbeat(result.out.splitlines())


def parse_heartbeat(lines: Sequence[str]) -> dict[str, Any]:
    """Parse the script's output. The heartbeat has no field that the output lacks."""
    beat: dict[str, Any] = {"time": time.time(), "members": [], "gpus": []}
    memory: dict[str, int] = {}
    for line in lines:
        words = line.split()
        if line.startswith("Mem") and len(words) > 1:
            memory[words[0]] = _mib(words[1])
        elif line.count(",") == len(SAMPLE) - 1:
            beat["gpus"] += read_sample(line, list(SAMPLE))
        elif len(words) >= 6 and words[4].endswith("%"):
            beat["disk_free_mib"] = _mib(words[3])
        elif len(words) == 5 and "/" in words[3]:
            beat["load1"] = read_figure(words[0])
    if memory.keys() == {"MemTotal:", "MemAvailable:"}:
        beat["memory_total_mib"] = memory["MemTotal:"]
        beat["memory_used_mib"] = memory["MemTotal:"] - memory["MemAvailable:"]
    return beat


def _mib(kib: str) -> int:
    return int(kib) // 1024 if kib.isdecimal() and len(kib) < 18 else 0
