"""Limits log messages that anybody can cause without a session, so that they do not fill the log."""

import logging
from collections.abc import Callable

from app.web.steady_clock import steady_s


class LogLimit(logging.Filter):
    """Passes each kind of message a few times a minute, then logs the number of suppressed messages.

    Messages of one kind have the same format string.
    """

    MOST = 5
    WINDOW_S = 60.0
    MOST_KINDS = 100

    def __init__(self, clock: Callable[[], float] = steady_s) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[object, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        began_s, count = self._kinds.get(record.msg, (now, 0))
        suppressed = 0
        if now - began_s > self.WINDOW_S:
            began_s, suppressed, count = now, max(0, count - self.MOST), 0
        if record.msg not in self._kinds and len(self._kinds) >= self.MOST_KINDS:
            self._kinds.pop(next(iter(self._kinds)))
        self._kinds[record.msg] = (began_s, count + 1)
        if suppressed:
            record.msg = f"{record.getMessage()} ({suppressed} similar messages were suppressed in the minute before)"
            record.args = ()
        return count < self.MOST


def limit_server_logs() -> None:
    """Limit the loggers of the web server and the event loop."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(LogLimit())
