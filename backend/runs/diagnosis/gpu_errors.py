"""What the Xid messages in the nodes' kernel logs mean for a run: which GPU failed, and what NVIDIA says of that.

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
"""The codes that end a run and name a GPU, the most telling first.

74 is the last: a GPU that fails takes its links down, and those at their other ends say 74. Not here: 13, 31 and 43,
which a program's own faults bring; 45 and 154, which follow others; 63, a repair that worked.
"""
WITHIN_S = 7200.0
"""Before the node's end. A hang is noticed after some time, but what the run lived through for hours did not end it."""


def find(records: Sequence[NodeRecord]) -> Problem | None:
    """The GPU that failed, of whichever node; None where the kernel logs name none, or cannot be read."""
    found = [
        (rank_of, one["time"] - record.clock_offset_s, record, one)
        for record in records
        for one in xids_of(record.exit)
        if (rank_of := _ORDER.get(one["xid"])) is not None and _is_near(record, one)
    ]
    if not found:
        return None
    _, _, record, one = min(found, key=lambda entry: entry[:2])
    lines = "\n".join(f"Xid {other['xid']}: {other.get('text', '')}".rstrip(": ") for other in xids_of(record.exit))
    told = {"node": record.address, "rank": record.rank, "gpu": name_of(one), "xid": one["xid"], "source": "dmesg",
            "lines": lines}  # fmt: skip
    return Problem(code=CODES[one["xid"]], node=record.address, values=told)


_ORDER = {xid: place for place, xid in enumerate(CODES)}


def xids_of(ended: Exit | None) -> Sequence[Xid]:
    """What the kernel log of a node said, as its exit record has it (supervisor/kernel_log.py)."""
    return _kernel_log(ended).get("xids", ())


def unread(ended: Exit | None) -> str:
    """Why the kernel log of a node with GPUs could not be read; empty where it could, or was not wanted."""
    return _kernel_log(ended).get("unread", "")


def _kernel_log(ended: Exit | None) -> KernelLog:
    return ended["kernel_log"] if ended and "kernel_log" in ended else {}


def name_of(one: Xid) -> str:
    """`3 (PCI 0000:83:00)`; the address alone where the index is not known."""
    pci = f"PCI {one['pci']}"
    return f"{one['gpu']} ({pci})" if "gpu" in one else pci


def words(xids: Sequence[Xid]) -> str:
    """`GPU 3 (PCI 0000:83:00) Xid 48; GPU 0 (PCI 0000:3d:00) Xid 74`."""
    return "; ".join(f"GPU {name_of(one)} Xid {one['xid']}" for one in xids)


def _is_near(record: NodeRecord, one: Xid) -> bool:
    return (record.exit or {}).get("time", 0.0) - one["time"] <= WITHIN_S
