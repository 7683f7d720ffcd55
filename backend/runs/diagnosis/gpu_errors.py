"""Meaning of the Xid messages in the nodes' kernel logs: which GPU failed, and what NVIDIA says about the error.

Meanings and actions: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (for Ampere and newer GPUs).
"""

from collections.abc import Mapping, Sequence

from backend.job.problems import Problem
from backend.runs.collect.node_records import Exit, KernelLog, Xid
from backend.runs.records import NodeRecord

CODES: Mapping[int, str] = {
    79: "gpu_off_bus",
    95: "gpu_memory_uncontained",
    48: "gpu_memory_error",
    94: "gpu_memory_contained",
    64: "gpu_row_remap_failed",
    119: "gpu_firmware_failed",
    120: "gpu_firmware_failed",
    46: "gpu_must_be_reset",
    62: "gpu_must_be_reset",
    109: "gpu_must_be_reset",
    140: "gpu_must_be_reset",
    158: "gpu_must_be_reset",
    74: "gpu_nvlink_failed",
}
"""The codes that end a run and name a GPU, the most specific first.

74 is the last: a failing GPU takes its links down, and the GPUs at their other ends report 74. Left out are 13, 31 and
43 (faults of a program), 45 and 154 (consequences of others) and 63 (a repair that worked).
"""
WITHIN_S = 7200.0
"""Time before the node's end. A hang is detected after some time, but an error hours earlier did not end the run."""


def find(records: Sequence[NodeRecord]) -> Problem | None:
    """Return the problem of the GPU that failed on any node; None if the kernel logs name none or cannot be read."""
    errors = [
        (rank_of, xid["time"] - record.clock_offset_s, record, xid)
        for record in records
        for xid in xids_of(record.exit)
        if (rank_of := _ORDER.get(xid["xid"])) is not None and _is_near(record, xid)
    ]
    if not errors:
        return None
    _, _, record, xid = min(errors, key=lambda entry: entry[:2])
    lines = "\n".join(
        f"Xid {message['xid']}: {message.get('text', '')}".rstrip(": ") for message in xids_of(record.exit)
    )
    details = {"node": record.address, "rank": record.rank, "gpu": name_of(xid), "xid": xid["xid"], "source": "dmesg",
            "lines": lines}  # fmt: skip
    return Problem(code=CODES[xid["xid"]], node=record.address, values=details)


_ORDER = {xid: position for position, xid in enumerate(CODES)}


def xids_of(ended: Exit | None) -> Sequence[Xid]:
    """Return the Xid messages of a node's kernel log, from its exit record (supervisor/kernel_log.py)."""
    return _kernel_log(ended).get("xids", ())


def unread(ended: Exit | None) -> str:
    """Return why the kernel log of a node with GPUs could not be read; empty if it could, or was not requested."""
    return _kernel_log(ended).get("unread", "")


def _kernel_log(ended: Exit | None) -> KernelLog:
    return ended["kernel_log"] if ended and "kernel_log" in ended else {}


def name_of(xid: Xid) -> str:
    """Return `3 (PCI 0000:83:00)`, or the address alone when the index is not known."""
    pci = f"PCI {xid['pci']}"
    return f"{xid['gpu']} ({pci})" if "gpu" in xid else pci


def words(xids: Sequence[Xid]) -> str:
    """Return `GPU 3 (PCI 0000:83:00) Xid 48; GPU 0 (PCI 0000:3d:00) Xid 74`."""
    return "; ".join(f"GPU {name_of(xid)} Xid {xid['xid']}" for xid in xids)


def _is_near(record: NodeRecord, xid: Xid) -> bool:
    return (record.exit or {}).get("time", 0.0) - xid["time"] <= WITHIN_S
