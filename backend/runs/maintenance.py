"""Repeated work of a server on its own database: the retention rules and the backup."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from backend.runs.retention import Retention
from backend.runs.store.backup import back_up
from backend.runs.store.store import StoreError

_log = logging.getLogger(__name__)

EVERY_S = 600.0


class Maintenance:
    """Applies the retention rules and keeps the backup fresh, each in its own thread, from start() to close()."""

    def __init__(self, retention: Retention, path: Path, clock: Callable[[], float] = time.time) -> None:
        tasks: dict[str, Callable[[], object]] = {
            "retention": lambda: _apply_rules(retention),
            "backup": lambda: _back_up(path, clock()),
        }
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(name, task), name=name, daemon=True)
            for name, task in tasks.items()
        ]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Start no further work. The next server continues an unfinished deletion and repeats an unfinished backup."""
        self._closing.set()

    def _repeat(self, name: str, task: Callable[[], object]) -> None:
        while not self._closing.is_set():
            try:
                task()
            except Exception:  # the edge of a thread: the next round tries again
                if not self._closing.is_set():
                    _log.exception(name)
            self._closing.wait(EVERY_S)


def _apply_rules(retention: Retention) -> None:
    try:
        retention.tick()
    except StoreError as error:  # a full or read-only disk
        _log.warning("retention has to wait: %s", error)


def _back_up(path: Path, now: float) -> None:
    try:
        back_up(path, now)
    except (sqlite3.Error, OSError) as error:
        _log.error("no backup of %s: %s", path, error)
