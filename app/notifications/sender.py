"""Sends notifications about runs. One thread of the server sends them in the order of the events.

The store keeps the newest event that was sent. So the next server sends events that happened while no server was
running. A server that is killed while it sends may send one message twice, but loses none. If several servers use
one home folder, only one of them sends.
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

POLL_INTERVAL_S = 5.0
RETRIES_S = (5.0, 30.0, 300.0)
"""Waits before each retry. After all retries failed, a recipient gets one try a message until one succeeds."""
AGAIN_S = 900.0
"""A run that enters a state again within this time causes no second message."""
CLOSE_S = 5.0
"""How long close() waits for a message that is being sent."""
MAX_AGE_S = 86400.0
"""Older events cause no message."""

_STATES = {"standstill": texts.hang_message, "slowdown": texts.straggler_message}
"""Field of a run's snapshot -> its message."""


class Recipient(Protocol):
    """Where a message goes, for example addresses.Address."""

    @property
    def name(self) -> str: ...

    def send(self, title: str, body: str, *, is_bad: bool) -> str | None: ...


class Notifier:
    """Notifies `recipients` when runs end, restart, hang or become slow, from start() to close()."""

    def __init__(
        self,
        database: Database,
        recipients: Sequence[Recipient],
        lang: str,
        *,
        clock: Callable[[], float],
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """`wait(seconds)` returns False to end the notifier. By default, close() ends it."""
        self._database = database
        self._recipients = recipients
        self._lang = lang
        self._clock = clock
        self._closing = threading.Event()
        self._wait = wait or (lambda seconds: not self._closing.wait(seconds))
        self._failing: set[str] = set()
        """Names of recipients that did not accept the newest message."""
        self._last_in_state: dict[tuple[str, str], float] = {}
        """(run, state) -> when the run was last in this state."""
        self._sent: int | None = None
        """The newest event that was sent or needs no message."""
        self._stored: int | None = None
        """The value of `_sent` in the store."""
        self._lock: int | None = None
        """File descriptor of the lock that makes this server the one that sends."""
        self._thread = threading.Thread(target=self._run, name="messages", daemon=True)

    def start(self) -> None:
        """Start the thread. It begins after the newest event that a server sent, or now if no server ever sent one."""
        self._write(self._database.begin_messages)
        self._thread.start()

    def close(self, *, sends_rest: bool = False) -> None:
        """Stop the thread. The next server sends an unfinished message again. `sends_rest`: try the rest once now."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        if sends_rest and not self._thread.is_alive():
            self._try_to_send()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def send_new(self) -> bool:
        """Send all new messages. Return False if the notifier must end before all are sent."""
        return not self._take_lock() or (self._send_events() and self._send_states())

    def _take_lock(self) -> bool:
        """Take the lock and keep it until close(). Return False while another server has it."""
        if self._lock is None:
            file = os.open(self._database.path.with_name("messages.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            self._lock = file
        return True

    def _send_events(self) -> bool:
        with self._database.read() as reader:
            if self._sent is None:
                self._sent = reader.messages_sent()
            events = reader.events_of(texts.NOTIFIED, after=self._sent)
        if not events:
            self._record_sent(self._sent)
        for event in events:
            is_late = self._clock() - event.time > MAX_AGE_S
            message = self._message(event) if not is_late and texts.needs_message(event) else None
            if message and not self._send(event.run, message):
                return False
            self._record_sent(event.seq)
        return True

    def _record_sent(self, event: int) -> None:
        # In memory first. Otherwise a full disk would repeat the same message again and again.
        self._sent = event
        if self._stored != event:
            self._write(lambda: self._database.set_messages_sent(event))
            self._stored = event

    def _send_states(self) -> bool:
        """Send one message when a run hangs or becomes slow, and another when this happens again much later."""
        with self._database.read() as reader:
            unfinished = reader.unfinished_runs()
        now = self._clock()
        self._last_in_state = {key: time for key, time in self._last_in_state.items() if now - time < AGAIN_S}
        for run in unfinished:
            snapshot = self._snapshot(run)
            for state, state_message in _STATES.items():
                if snapshot is None or getattr(snapshot, state) is None:
                    continue
                is_new = (run, state) not in self._last_in_state
                self._last_in_state[run, state] = now
                if is_new and not self._send(run, state_message(snapshot, self._lang)):
                    return False
        return True

    def _message(self, event: Event) -> texts.Message | None:
        snapshot = self._snapshot(event.run)
        # The user of a chat sits before the page and ends it there.
        is_told = snapshot is not None and snapshot.engine != "chat"
        return texts.event_message(event, snapshot, self._lang) if snapshot and is_told else None

    def _snapshot(self, run: str) -> RunSnapshot | None:
        """Return None if the run's record cannot be read. The list of runs shows that problem."""
        try:
            with self._database.read() as reader:
                return reader.snapshot(run, self._clock())
        except StoreError:
            raise
        except ProblemsError:
            return None

    def _send(self, run: str, message: texts.Message) -> bool:
        for recipient in self._recipients:
            reason: str | None = ""
            for wait_s in (0.0, *(() if recipient.name in self._failing else RETRIES_S)):
                if wait_s and not self._wait(wait_s):
                    return False
                reason = recipient.send(message.title, message.body, is_bad=message.is_bad)
                if reason is None:
                    break
            if reason is None:
                self._failing.discard(recipient.name)
                continue
            self._failing.add(recipient.name)
            _log.warning("no message about %s to %s: %s", run, recipient.name, reason)
            self._record_failure(run, {"to": recipient.name, "reason": reason})
        return True

    def _record_failure(self, run: str, detail: dict[str, str]) -> None:
        now = self._clock()
        self._write(lambda: self._database.record_failed_message(run, detail, time=now))

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except StoreError as error:  # the page shows the problem of the store
            _log.warning("the state of the messages is not stored: %s", error)

    def _run(self) -> None:
        while self._try_to_send() and self._wait(POLL_INTERVAL_S):
            pass

    def _try_to_send(self) -> bool:
        try:
            return self.send_new()
        except Exception:  # an error must not end the thread: the next poll tries again
            _log.exception("messages could not be sent")
            return True
