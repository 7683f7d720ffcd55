"""Passphrases of private keys. The user enters each once, and only this process's memory has them."""

import threading
from pathlib import Path

CODES = frozenset({"passphrase_needed", "passphrase_wrong"})
"""Codes of the problems that a passphrase solves. Their `identity_file` is the path of the key."""


class Passphrases:
    """Passphrases by path of the key file. Several threads may use it, and its repr has no passphrase."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Path, str] = {}

    def put(self, identity_file: str, passphrase: str) -> None:
        """Store a passphrase for the next connections. It replaces a wrong one."""
        with self._lock:
            self._values[_absolute(Path(identity_file))] = passphrase

    def get(self, identity_file: Path) -> str | None:
        """Return the passphrase of a key, or None if the user has not entered it."""
        with self._lock:
            return self._values.get(_absolute(identity_file))

    def __repr__(self) -> str:
        return f"<passphrases of {len(self._values)} keys>"


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError:  # `~name` of a user that this machine does not have
        return path


PASSPHRASES = Passphrases()
"""The passphrases of this process."""
