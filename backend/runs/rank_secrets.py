"""Secrets of the ranks, such as HF_TOKEN. Only the memory of this process holds them, for all runs that it launches.

A node gets them as a file that only its user can read. The supervisor's child reads and removes that file before it
starts the engine (backend/node/supervisor/).
"""

import json
import re
import secrets
import threading
from collections.abc import Mapping

from backend.engines.checks import check_name
from backend.job.problems import Problem, ProblemsError
from backend.runs.redact import hide

FILE = "secrets.json"
"""File in the run folder, mode 0600. It exists from just before the start until the ranks have the secrets."""
FIELD = "secrets"
COMMON = ("HF_TOKEN", "WANDB_API_KEY", "MODELSCOPE_API_TOKEN", "SWANLAB_API_KEY")
"""Names that the page offers."""
# Without characters that JSON or shells escape, so that a secret can be found in any text. The shortest token in use
# has more than twenty characters; hiding a short word would hide half of every log.
_VALUE = re.compile(r"[A-Za-z0-9!#$%&()*+,./:;<=>?@\[\]^_{|}~-]{8,4096}")


def refuse(name: str, value: str) -> None:
    """Raise ProblemsError for a bad secret: environment_bad, environment_owned, secret_bad."""
    problem = check_name(name, FIELD)
    if problem is None and not _VALUE.fullmatch(value):
        problem = Problem(code="secret_bad", field=FIELD, values={"name": name})
    if problem:
        raise ProblemsError([problem])


class Secrets:
    """Name -> value. Safe for many threads. The values cannot be printed, and are lost when the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}

    def put(self, name: str, value: str) -> None:
        """Store a secret under its name. Raises ProblemsError as in `refuse`."""
        refuse(name, value)
        hide(value)
        with self._lock:
            self._values[name] = value

    def forget(self, name: str) -> None:
        """Remove a secret. Later runs do not get it."""
        with self._lock:
            self._values.pop(name, None)

    def names(self) -> tuple[str, ...]:
        """Return the names of the secrets."""
        with self._lock:
            return tuple(sorted(self._values))

    def taken(self) -> "TakenSecrets":
        """Return a copy for one launch."""
        with self._lock:
            return TakenSecrets(self._values)

    def __repr__(self) -> str:
        return f"<secrets {', '.join(self.names())}>"


class TakenSecrets:
    """The secrets of one attempt; false when there are none."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def names(self) -> list[str]:
        """Return the names of the secrets."""
        return sorted(self._values)

    def file(self) -> bytes:
        """Return the content of the file for the supervisor's child."""
        return json.dumps(self._values).encode()

    def __bool__(self) -> bool:
        return bool(self._values)

    def __repr__(self) -> str:
        return f"<secrets {', '.join(self.names())}>"


class ApiKeys:
    """The keys of the chats that this process started: run -> key. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, str] = {}

    def new(self, run: str) -> str:
        """Return a new key for a chat. Logs never show it."""
        key = secrets.token_urlsafe(32)
        hide(key)
        with self._lock:
            self._keys[run] = key
        return key

    def get(self, run: str) -> str | None:
        """Return the key of a chat; None when another process started it, or this one before its restart."""
        with self._lock:
            return self._keys.get(run)

    def __repr__(self) -> str:
        return f"<keys of {len(self._keys)} chats>"


SECRETS = Secrets()
"""The secrets of this process."""
