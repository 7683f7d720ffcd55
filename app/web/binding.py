"""Where the server listens, and what it refuses to."""

import os
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from app.private_file import is_open_to_others

DEFAULT_PORT = 7860
_USUAL = frozenset({"127.0.0.1", "localhost", "::1"})
"""Where the server's own name `*.localhost` leads."""


class ServerError(Exception):
    """The server cannot be started as asked; `code` and `values` name the words for it."""

    def __init__(self, code: str, **values: object) -> None:
        super().__init__(code)
        self.code = code
        self.values = values


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """Where the server listens; anything but this machine itself needs TLS and the names it is reached by."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    certificate: Path | None = None
    key: Path | None = None
    hosts: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises ServerError when the address is not this machine's own and TLS or the host names are missing, or when
        other users can read the TLS key."""
        if bool(self.certificate) != bool(self.key):
            raise ServerError("tls_half")
        for path in (self.certificate, self.key):
            if path and not os.access(path, os.R_OK):
                raise ServerError("tls_unreadable", path=str(path))
        if self.key and is_open_to_others(self.key):
            raise ServerError("tls_key_open", path=str(self.key))
        if not _is_loopback(self.host) and not (self.certificate and self.hosts):
            raise ServerError("not_loopback", host=self.host)

    def listen(self) -> socket.socket:
        """The bound socket; raises ServerError when the port is taken or the address is not this machine's."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except (OSError, OverflowError) as error:  # a number that is no port
            listener.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise ServerError("cannot_listen", host=self.host, port=self.port, reason=reason) from error
        return listener

    @property
    def names(self) -> tuple[str, ...]:
        """Host names that the operator chose; an unusual loopback address is such a choice."""
        is_chosen = _is_loopback(self.host) and self.host not in _USUAL
        return (*self.hosts, self.host) if is_chosen else self.hosts

    def address(self, port: int, own: str) -> str:
        """What to type into a browser; `own` is the server's own host name."""
        host = (*self.names, own)[0]
        scheme = "https" if self.certificate else "http"
        shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"{scheme}://{shown}:{port}/"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
