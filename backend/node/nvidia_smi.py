"""The only reader of nvidia-smi: its commands, and the figures in its answers. Standard library only, Python >= 3.8.

The server imports the parser. node_programs.py puts this module before the programs that call nvidia-smi.
"""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from backend.node.tools import Output, run_tool

SMI_FOLDERS = ("/usr/lib/wsl/lib", "/usr/local/nvidia/bin")
"""Folders of nvidia-smi in WSL and in the containers of some clouds. They are not in sshd's PATH."""
CSV = "--format=csv,noheader,nounits"
SAMPLE = {
    "index": "index",
    "utilization": "utilization.gpu",
    "memory_used_mib": "memory.used",
    "memory_total_mib": "memory.total",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "clock_mhz": "clocks.sm",
    # The bits of nvml.h's nvmlClocksEventReasons. New drivers accept this older name, too.
    "clock_limits": "clocks_throttle_reasons.active",
}
"""Key of a GPU in a heartbeat -> nvidia-smi's field."""
SAMPLE_S = 30.0
"""nvidia-smi answers after seconds where persistence mode is off."""
INVENTORY = {
    "query": ["--query-gpu=index,uuid,name,memory.total,memory.used,driver_version", CSV],
    "more": ["--query-gpu=index,mig.mode.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max", CSV],
    "errors": ["--query-gpu=index,ecc.errors.uncorrected.volatile.total", CSV],
    "power": ["--query-gpu=index,power.limit,power.default_limit", CSV],
    "rows": ["--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure", "--format=csv,noheader"],
    "apps": ["--query-compute-apps=gpu_uuid,pid,process_name,used_memory", CSV],
    "list": ["-L"],
    "topo": ["topo", "-m"],
    "table": [],
}
"""Question -> arguments. Each question is a separate call, because old drivers refuse a call with an unknown field."""
INVENTORY_S = 20.0
"""Time limit of a call. nvidia-smi never answers where a driver hangs."""
MAX_DIGITS = 12
"""No figure of nvidia-smi has more digits."""


def find_smi() -> str | None:
    """Return the path of nvidia-smi, or None on a node without it."""
    return shutil.which("nvidia-smi", path=os.pathsep.join([os.environ.get("PATH", os.defpath), *SMI_FOLDERS]))


def run_smi(arguments: list[str], timeout_s: float) -> Output:
    """Run nvidia-smi with these arguments."""
    return run_tool([find_smi() or "nvidia-smi", *arguments], timeout_s)


def read_inventory() -> dict[str, Any] | None:
    """Return nvidia-smi's answer to each question of INVENTORY, or None on a node without it."""
    if find_smi() is None:
        return None
    with ThreadPoolExecutor(len(INVENTORY)) as pool:
        calls = {name: pool.submit(run_smi, arguments, INVENTORY_S) for name, arguments in INVENTORY.items()}
        return {name: call.result()._asdict() for name, call in calls.items()}


def read_gpus(timeout_s: float = SAMPLE_S) -> list[dict[str, float | None]]:
    """Return the figures of each GPU now. The list is empty where nvidia-smi reports no GPU."""
    for keys in (list(SAMPLE), list(SAMPLE)[:-1]):
        out = run_smi([f"--query-gpu={','.join(SAMPLE[key] for key in keys)}", CSV], timeout_s).out
        if "is not a valid field" not in out:  # the last field has two names, and a driver may drop one of them
            break
    return read_sample(out, keys)


def read_sample(out: str, keys: list[str]) -> list[dict[str, float | None]]:
    """Read the figures of each GPU, by the keys of its columns."""
    rows = [[read_figure(value) for value in row] for row in read_rows(out, len(keys))]
    return [dict(zip(keys, row)) for row in rows if row[0] is not None]


def read_buses() -> dict[float, str]:
    """Return the PCI address of each GPU by its index, as the kernel writes it: 0000:83:00 for 00000000:83:00.0."""
    buses = {}
    for index, bus in read_rows(run_smi(["--query-gpu=index,pci.bus_id", "--format=csv,noheader"], SAMPLE_S).out, 2):
        match = re.search(r"([0-9A-Fa-f]{4}:[0-9A-Fa-f]+:[0-9A-Fa-f]+)\.\d+$", bus)
        if match and index.isdigit():
            buses[float(index)] = match[1].lower()
    return buses


def read_rows(out: str, columns: int) -> list[list[str]]:
    """Return the rows that have this number of columns. A row of another length is a message."""
    rows = [[value.strip() for value in line.split(",")] for line in out.splitlines()]
    return [row for row in rows if len(row) == columns]


def read_figure(text: str) -> float | None:
    """Return a figure, decimal or hexadecimal, or None for [N/A] and other text."""
    try:
        return float(int(text, 16)) if text.strip().startswith("0x") else float(text)
    except ValueError:
        return None


def read_count(text: str) -> int | None:
    """Return a whole figure, or None for [N/A], [Not Supported] and other text."""
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None
