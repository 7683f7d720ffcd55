"""Where messages go: a private file with an address a line, as Apprise writes them (https://appriseit.com/services/).

    # whoever is on duty
    feishu://TOKEN
    mailtos://user:password@example.com?to=team@example.com
    json://127.0.0.1:9000/megaboard

An address holds a token or a password: it is never shown, logged or kept, only the name of its service is.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from apprise import Apprise, LogCapture, NotifyType
from apprise.plugins import NotifyBase

from app.private_file import PrivateFileError, read_private
from backend.runs.redact import hide, redact

# Its complaints name addresses with their tokens; what can be told of them is told here.
logging.getLogger("apprise").propagate = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """One place to send messages to."""

    name: str
    """The service, with a number where several are of the same."""
    service: NotifyBase = field(repr=False)

    def send(self, title: str, body: str, *, is_bad: bool) -> str | None:
        """Send a message; None when it was taken, else why not."""
        kind = NotifyType.FAILURE if is_bad else NotifyType.SUCCESS
        with LogCapture(level=logging.WARNING, fmt="%(message)s") as log:
            if self.service.notify(title=title, body=body, notify_type=kind):
                return None
            return redact(" ".join(log.getvalue().split())) or "?"


def read_addresses(path: Path) -> list[Address]:
    """The addresses of a file. PrivateFileError: also for a line that is no address, by its number, and for none."""
    found: list[NotifyBase] = []
    for number, line in enumerate(read_private(path), 1):
        if not line or line.startswith("#"):
            continue
        hide(line)
        with LogCapture(level=logging.WARNING):
            service = Apprise.instantiate(line, suppress_exceptions=True)
        if service is None:
            raise PrivateFileError("message_address_unknown", path=str(path), line=number)
        found.append(service)
    if not found:
        raise PrivateFileError("message_addresses_none", path=str(path))
    return [Address(name=_name(found, place), service=service) for place, service in enumerate(found)]


def _name(services: list[NotifyBase], place: int) -> str:
    """Of the service, and which of them it is."""
    names = [str(service.service_name) for service in services]
    name = names[place]
    return name if names.count(name) == 1 else f"{name} {names[: place + 1].count(name)}"
