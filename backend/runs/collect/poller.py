"""Polls the files of one node of a run, and measures how long the node is reachable or unreachable.

A fault on the server's side (NodeError.is_local, StoreError) says nothing about the node. Meanwhile its state is
unknown, and neither its reachable time nor its unreachable time is counted.
"""

import logging
import math
import random
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from backend.cluster.node import Node, NodeError
from backend.runs.collect.collector import Polled
from backend.runs.records import Event, problem_to_json
from backend.runs.states import EventKind
from backend.runs.store import metrics, run_store
from backend.runs.store.store import Store, StoreError

_log = logging.getLogger(__name__)

POLL_S = 1.0
LONGEST_BACK_OFF_S = 15.0
TOLERATED_FAILURES = 2
"""One failed poll is not reported: the next poll reconnects."""
HEARD_S = 10.0
"""Another process reads the node if a heartbeat arrived within this time (five heartbeats)."""
_REPORTS = (EventKind.NODE_REACHABLE, EventKind.NODE_UNREACHABLE, EventKind.NODE_UNSEEN)


class Reader(Protocol):
    """A reader of the files of a node."""

    def poll(self, node: Node) -> Polled:
        """Read and store new records. Raises NodeError and StoreError."""


class Poller:
    """Polls one node. One thread calls `step` in a loop; other threads may read the rest.

    `report` gets the error when the node cannot be read, and None when it can be read again. `was_away`: the newest
    report of an earlier server was an error.
    """

    def __init__(
        self,
        collector: Reader,
        connect: Callable[[], Node],
        report: Callable[[NodeError | None], None],
        *,
        monotonic: Callable[[], float],
        poll_s: float = POLL_S,
        was_away: bool = False,
    ) -> None:
        self._collector = collector
        self._connect = connect
        self._report = report
        self._monotonic = monotonic
        self._poll_s = poll_s
        self._failing: str | None = None
        self._failures = 0
        """Consecutive failures of the kind `_failing`."""
        self._reported: str | None = "before" if was_away else None
        self._up_since: float | None = None
        self._down_since: float | None = None
        self._heard = monotonic()
        self.ended = False

    def step(self) -> float:
        """Poll once; return the seconds until the next poll. No poll follows when `ended` is set."""
        try:
            polled = self._collector.poll(self._connect())
        except NodeError as error:
            return self._note_failure(error)
        except StoreError as error:
            _log.error("collected rows could not be stored: %s", error)
            self._forget()
            return LONGEST_BACK_OFF_S
        except Exception:
            self._forget()
            raise
        self._note_success()
        if polled.heartbeat:
            self._heard = self._monotonic()
        self.ended = polled.ended
        return 0.0 if polled.more else self._poll_s

    def connection(self) -> tuple[float | None, float | None, float]:
        """Return (up_s, down_s, silent_s) of gang_rules.NodeView."""
        now = self._monotonic()
        up, down = self._up_since, self._down_since
        return (None if up is None else now - up, None if down is None else now - down, now - self._heard)

    def _note_success(self) -> None:
        if self._reported is not None:
            self._report(None)
        self._reported = self._failing = None
        self._failures = 0
        self._down_since = None
        if self._up_since is None:
            self._up_since = self._monotonic()

    def _note_failure(self, error: NodeError) -> float:
        kind = error.code if error.is_local else "away"
        self._failures = self._failures + 1 if kind == self._failing else 1
        self._failing = kind
        self._up_since = None
        if error.is_local:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = self._monotonic()
        if self._failures >= TOLERATED_FAILURES and (error.is_local or self._reported != kind):
            self._report(error)
            self._reported = kind
        back_off = min(LONGEST_BACK_OFF_S, self._poll_s * (1 << min(self._failures - 1, 10)))
        return back_off * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, no secret

    def _forget(self) -> None:
        """Set the state of the node to unknown."""
        self._up_since = self._down_since = None


def record_connection(store: Store, run: str, attempt: int, rank: int, error: NodeError | None, now: float) -> None:
    """Record the report of a poller, if it is new.

    A fault of this process is ignored while another process reads the node. For example, a command line lacks the
    passphrase, but a server has it.
    """
    kind = EventKind.NODE_REACHABLE
    if error is not None:
        kind = EventKind.NODE_UNSEEN if error.is_local else EventKind.NODE_UNREACHABLE
    detail = {} if error is None else {"problem": problem_to_json(error.problem)}

    def write(connection: sqlite3.Connection) -> None:
        newest = newest_report(run_store.events(connection, run), attempt, rank)
        if kind is EventKind.NODE_REACHABLE and (newest is None or newest.kind is kind):
            return
        if kind is EventKind.NODE_UNSEEN:
            is_known = newest is not None and newest.kind is kind and _code(newest.detail) == _code(detail)
            heard, _ = metrics.newest_heartbeats(connection, run, attempt).get(rank, (-math.inf, {}))
            if is_known or now - heard < HEARD_S:
                return
        run_store.append(connection, run, kind, time=now, attempt=attempt, rank=rank, detail=detail)

    store.write(write)


def newest_report(history: Iterable[Event], attempt: int, rank: int) -> Event | None:
    """Return the newest report on whether a node can be read."""
    reports = [event for event in history if event.kind in _REPORTS and (event.attempt, event.rank) == (attempt, rank)]
    return reports[-1] if reports else None


def was_away(history: Iterable[Event], attempt: int, rank: int) -> bool:
    """Return whether the newest report of a node is an error."""
    newest = newest_report(history, attempt, rank)
    return newest is not None and newest.kind is not EventKind.NODE_REACHABLE


def _code(detail: Mapping[str, Any]) -> object:
    return (detail.get("problem") or {}).get("code")
