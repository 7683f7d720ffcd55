"""The address on which the server listens."""

import os
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from app.private_file import is_open_to_others

DEFAULT_PORT = 7860
_USUAL = frozenset({"127.0.0.1", "localhost", "::1"})
"""Addresses that the server's own name `*.localhost` may resolve to."""


class ServerError(Exception):
    """The server cannot start. `code` and `values` select the text of the message."""

    def __init__(self, code: str, **values: object) -> None:
        super().__init__(code)
        self.code = code
        self.values = values


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """The address on which the server listens. An address that is not loopback needs TLS and host names."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    certificate: Path | None = None
    key: Path | None = None
    hosts: tuple[str, ...] = ()

    def check(self) -> None:
        """Check the TLS files, and that an address that is not loopback has TLS and host names. Raises ServerError."""
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
        """Return the bound socket. Raises ServerError if the port is in use or the address is not of this machine."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except (OSError, OverflowError) as error:  # OverflowError: not a valid port
            listener.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise ServerError("cannot_listen", host=self.host, port=self.port, reason=reason) from error
        return listener

    @property
    def names(self) -> tuple[str, ...]:
        """Host names that the operator chose, including a loopback address other than the usual ones."""
        is_chosen = _is_loopback(self.host) and self.host not in _USUAL
        return (*self.hosts, self.host) if is_chosen else self.hosts

    def address(self, port: int, own: str) -> str:
        """Return the URL to type into a browser. `own` is the server's own host name."""
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
