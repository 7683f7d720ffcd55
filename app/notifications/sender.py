"""Sends what the operator should hear of while a server is up: one thread, in the order in which things happened.

How far it is stands in the store: what happens while no server is up is told by the next one, and a server that is
killed while it sends may tell one thing twice, never none. Of several servers of one home one tells.
"""

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from app.notifications import texts
from backend.job.problems import ProblemsError
from backend.runs.api import StoreError
from backend.runs.database import Database
from backend.runs.records import Event, RunSnapshot

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
RETRIES_S = (5.0, 30.0, 300.0)
"""Waits before a message is tried again; an address that took none of them is tried once a message until it does."""
AGAIN_S = 900.0
"""A run that comes and goes at the edge of a state is told of once."""
CLOSE_S = 5.0
"""Wait for a message that is being sent."""
LATEST_S = 86400.0
"""What is older is not told any more."""

_STATES = {"standstill": texts.of_standstill, "slowdown": texts.of_slowdown}
"""Field of a run's snapshot -> the message about it."""


class Recipient(Protocol):
    """Somewhere to send to, as addresses.Address is."""

    @property
    def name(self) -> str: ...

    def send(self, title: str, body: str, *, is_bad: bool) -> str | None: ...


class Messenger:
    """Tells `places` of the ends, restarts, standstills and slowdowns of runs, from start() to close()."""

    def __init__(
        self,
        database: Database,
        places: Sequence[Recipient],
        lang: str,
        *,
        clock: Callable[[], float],
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """`wait(seconds)`: False when it is time to end; by default, at close()."""
        self._database = database
        self._places = places
        self._lang = lang
        self._clock = clock
        self._closing = threading.Event()
        self._wait = wait or (lambda seconds: not self._closing.wait(seconds))
        self._silent: set[str] = set()
        """Names of places that took nothing lately."""
        self._seen: dict[tuple[str, str], float] = {}
        """(run, state that was told of it) -> when it was last in it."""
        self._told: int | None = None
        """The newest event that was told, and that of which the store knows it."""
        self._kept: int | None = None
        self._lock: int | None = None
        """An open file whose lock says that this server tells."""
        self._thread = threading.Thread(target=self._tell_on, name="messages", daemon=True)

    def start(self) -> None:
        """Begin; with what has happened since the last message, or from now on where there never was one."""
        self._write(self._database.begin_messages)
        self._thread.start()

    def close(self, *, tells_all: bool = False) -> None:
        """End; a message on its way is left to the next server. `tells_all`: after one more try of what there is."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        if tells_all and not self._thread.is_alive():
            self._tell_once()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def tell(self) -> bool:
        """Send what there is to say now; False when it was time to end meanwhile."""
        return not self._is_mine() or (self._tell_events() and self._tell_states())

    def _is_mine(self) -> bool:
        """Whether no other server tells; from then on until this process ends."""
        if self._lock is None:
            file = os.open(self._database.path.with_name("messages.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            self._lock = file
        return True

    def _tell_events(self) -> bool:
        with self._database.read() as reader:
            if self._told is None:
                self._told = reader.messages_sent()
            events = reader.events_of(texts.TOLD, after=self._told)
        if not events:
            self._keep(self._told)
        for event in events:
            is_late = self._clock() - event.time > LATEST_S
            message = None if is_late else self._words(event)
            if message and not self._send(event.run, message):
                return False
            self._keep(event.seq)
        return True

    def _keep(self, event: int) -> None:
        """Here first: on a full disk the same thing would be told again and again."""
        self._told = event
        if self._kept != event:
            self._write(lambda: self._database.set_messages_sent(event))
            self._kept = event

    def _tell_states(self) -> bool:
        """Runs that came to a standstill or became slow: once, and again when that comes back much later."""
        with self._database.read() as reader:
            unfinished = reader.unfinished_runs()
        now = self._clock()
        self._seen = {known: when for known, when in self._seen.items() if now - when < AGAIN_S}
        for run in unfinished:
            found = self._snapshot(run)
            for state, of_state in _STATES.items():
                if found is None or getattr(found, state) is None:
                    continue
                is_new = (run, state) not in self._seen
                self._seen[run, state] = now
                if is_new and not self._send(run, of_state(found, self._lang)):
                    return False
        return True

    def _words(self, event: Event) -> texts.Message | None:
        found = self._snapshot(event.run)
        return texts.of_event(event, found, self._lang) if found else None

    def _snapshot(self, run: str) -> RunSnapshot | None:
        """None for a run whose record cannot be read; the list of runs says so."""
        try:
            with self._database.read() as reader:
                return reader.snapshot(run, self._clock())
        except StoreError:
            raise
        except ProblemsError:
            return None

    def _send(self, run: str, message: texts.Message) -> bool:
        for place in self._places:
            reason: str | None = ""
            for wait_s in (0.0, *(() if place.name in self._silent else RETRIES_S)):
                if wait_s and not self._wait(wait_s):
                    return False
                reason = place.send(message.title, message.body, is_bad=message.is_bad)
                if reason is None:
                    break
            if reason is None:
                self._silent.discard(place.name)
                continue
            self._silent.add(place.name)
            _log.warning("no message about %s to %s: %s", run, place.name, reason)
            self._note(run, {"to": place.name, "reason": reason})
        return True

    def _note(self, run: str, detail: dict[str, str]) -> None:
        now = self._clock()
        self._write(lambda: self._database.record_failed_message(run, detail, time=now))

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except StoreError as error:  # the page says what is wrong with the store
            _log.warning("about messages: %s", error)

    def _tell_on(self) -> None:
        while True:
            if not self._tell_once() or not self._wait(LOOK_EVERY_S):
                return

    def _tell_once(self) -> bool:
        try:
            return self.tell()
        except Exception:  # the edge of a thread: the next look tries again
            _log.exception("telling of runs")
            return True
