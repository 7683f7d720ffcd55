"""The addresses of notifications: a private file with one Apprise URL a line (https://appriseit.com/services/).

    # on-call engineer
    feishu://TOKEN
    mailtos://user:password@example.com?to=team@example.com
    json://127.0.0.1:9000/megaboard

An address contains a token or a password. So it is never shown, logged or stored. The name of its service is.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from apprise import Apprise, LogCapture, NotifyType
from apprise.plugins import NotifyBase

from app.private_file import PrivateFileError, read_private
from backend.runs.redact import hide, redact

# Its log messages contain addresses with tokens. `send` reports them without secrets.
logging.getLogger("apprise").propagate = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """An address that receives messages."""

    name: str
    """Name of the service, with a number if several addresses use the same service."""
    service: NotifyBase = field(repr=False)

    def send(self, title: str, body: str, *, is_bad: bool) -> str | None:
        """Send a message. Return None if the service accepted it, else the reason."""
        kind = NotifyType.FAILURE if is_bad else NotifyType.SUCCESS
        with LogCapture(level=logging.WARNING, fmt="%(message)s") as log:
            if self.service.notify(title=title, body=body, notify_type=kind):
                return None
            return redact(" ".join(log.getvalue().split())) or "?"


def read_addresses(path: Path) -> list[Address]:
    """Return the addresses of a file. Raises PrivateFileError if it has none, or an invalid line."""
    services: list[NotifyBase] = []
    for number, line in enumerate(read_private(path), 1):
        if not line or line.startswith("#"):
            continue
        hide(line)
        with LogCapture(level=logging.WARNING):
            service = Apprise.instantiate(line, suppress_exceptions=True)
        if service is None:
            raise PrivateFileError("message_address_unknown", path=str(path), line=number)
        services.append(service)
    if not services:
        raise PrivateFileError("message_addresses_none", path=str(path))
    return [Address(name=_name(services, index), service=service) for index, service in enumerate(services)]


def _name(services: list[NotifyBase], index: int) -> str:
    names = [str(service.service_name) for service in services]
    name = names[index]
    return name if names.count(name) == 1 else f"{name} {names[: index + 1].count(name)}"
