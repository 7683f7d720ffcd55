"""Reports unreadable records of a node: the first of a file, and again each time the count grows tenfold."""

import sqlite3
from collections.abc import Mapping
from typing import Any

from backend.runs.collect.node_records import Bad
from backend.runs.redact import redact
from backend.runs.states import EventKind
from backend.runs.store import run_store
from backend.runs.store.metrics import FileKey

AGAIN = 10


class Counts:
    """Counts of one collector for each file of a node; a new collector continues from the recorded events."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}
        self._new: dict[str, int] = {}

    def add(self, connection: sqlite3.Connection, key: FileKey, bad: Bad) -> Mapping[str, Any] | None:
        """Add to the count; return the detail of the event to record, or None if none is due."""
        recorded = _recorded_count(connection, key)
        count = max(recorded, self._new.get(key.file, self._kept.get(key.file, 0))) + bad.number
        self._new[key.file] = count
        if recorded and count < AGAIN * recorded:
            return None
        return {"file": key.file, "count": count, "first": redact(bad.first), "why": redact(bad.why)}

    def settle(self) -> None:
        """Keep the new counts, which are in the store now."""
        self._kept |= self._new
        self._new = {}


def _recorded_count(connection: sqlite3.Connection, key: FileKey) -> int:
    """Return the count in the newest event of this file; 0 without one."""
    events = run_store.events_of_node(connection, key.run, key.attempt, EventKind.BAD_RECORDS, key.rank)
    return next((event.detail["count"] for event in reversed(events) if event.detail.get("file") == key.file), 0)
