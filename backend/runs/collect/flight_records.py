"""NCCL's flight records: the state of each rank's collectives at a timeout or a hang.

Ranks write them into the node's run folder (engines/environment.py). A copy stays beside the store, for torchfrtrace.
They are pickles, so this program never loads them.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from backend.cluster.node import Node, NodeError
from backend.node.supervisor.shutdown import RECORDS

LIMIT = 64 << 20
"""Limit in bytes of one record; twenty thousand entries take a tenth of it."""
CHUNK = 1 << 20

_log = logging.getLogger(__name__)


def copy_records(node: Node, folder: str, ranks: Sequence[int], into: Path) -> list[str]:
    """Copy the records of global ranks from a node's run folder; return the names of the copied records.

    Raises NodeError.
    """
    copied = []
    for name in (f"{RECORDS}{rank}" for rank in ranks):
        try:
            data = _read(node, f"{folder}/{name}")
        except NodeError as error:
            if error.code != "missing_file":
                raise
            continue
        try:
            into.mkdir(mode=0o700, parents=True, exist_ok=True)
            (into / name).touch(mode=0o600)
            (into / name).write_bytes(data)
        except OSError as error:  # a full disk of this machine must not prevent the end of a run
            _log.error("flight record %s of %s could not be kept: %s", name, node.name, error)
            continue
        copied.append(name)
    return copied


def _read(node: Node, path: str) -> bytes:
    data = bytearray()
    while len(data) < LIMIT:
        chunk = node.read(path, len(data), CHUNK)
        data += chunk
        if len(chunk) < CHUNK:
            break
    return bytes(data)


def folder_of(home: str | os.PathLike[str], run: str, attempt: int) -> Path:
    """Return the folder of the records of an attempt."""
    return Path(home) / "flight_records" / run / str(attempt)
