"""Passphrases of private keys: asked of the user once, in the memory of this process alone."""

import threading
from pathlib import Path


class Passphrases:
    """Path of a key file -> its passphrase, for many threads. It prints none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Path, str] = {}

    def put(self, identity_file: str, passphrase: str) -> None:
        """Use it from the next connection on, in place of one that was wrong."""
        with self._lock:
            self._values[_absolute(Path(identity_file))] = passphrase

    def get(self, identity_file: Path) -> str | None:
        """The passphrase of a key; None where nobody told one."""
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
"""This process's own."""
