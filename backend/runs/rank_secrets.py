"""Secrets of the ranks, such as HF_TOKEN: in the memory of this process alone, for every run that it launches.

They reach a node as a file that only its user can read, which the supervisor's child takes in and removes before it
becomes the engine (backend/node/supervisor/).
"""

import json
import re
import threading
from collections.abc import Mapping

from backend.engines.checks import check_name
from backend.job.problems import Problem, ProblemsError
from backend.runs.redact import hide

FILE = "secrets.json"
"""In the run folder, mode 0600, from just before the start until the ranks have it."""
FIELD = "secrets"
COMMON = ("HF_TOKEN", "WANDB_API_KEY", "MODELSCOPE_API_TOKEN", "SWANLAB_API_KEY")
"""Names to offer."""
# Without what JSON and shells write otherwise, so that it is found wherever it may have got to; the shortest token that
# is in use has more than twenty characters, and hiding a short word would hide half of every log.
_VALUE = re.compile(r"[A-Za-z0-9!#$%&()*+,./:;<=>?@\[\]^_{|}~-]{8,4096}")


def refuse(name: str, value: str) -> None:
    """ProblemsError for what cannot be kept: environment_bad, environment_owned, secret_bad."""
    problem = check_name(name, FIELD)
    if problem is None and not _VALUE.fullmatch(value):
        problem = Problem(code="secret_bad", field=FIELD, values={"name": name})
    if problem:
        raise ProblemsError([problem])


class Secrets:
    """Name -> value, for many threads. Nothing of it can be printed, and it ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}

    def put(self, name: str, value: str) -> None:
        """Keep a secret under its name. ProblemsError as of `refuse`."""
        refuse(name, value)
        hide(value)
        with self._lock:
            self._values[name] = value

    def forget(self, name: str) -> None:
        """Give it to no later run."""
        with self._lock:
            self._values.pop(name, None)

    def names(self) -> tuple[str, ...]:
        """What is kept."""
        with self._lock:
            return tuple(sorted(self._values))

    def taken(self) -> "TakenSecrets":
        """As they are now, for one launch."""
        with self._lock:
            return TakenSecrets(self._values)

    def __repr__(self) -> str:
        return f"<secrets {', '.join(self.names())}>"


class TakenSecrets:
    """The secrets of one attempt; without any it is false."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def names(self) -> list[str]:
        """What the ranks are given."""
        return sorted(self._values)

    def file(self) -> bytes:
        """What the supervisor's child reads."""
        return json.dumps(self._values).encode()

    def __bool__(self) -> bool:
        return bool(self._values)

    def __repr__(self) -> str:
        return f"<secrets {', '.join(self.names())}>"


SECRETS = Secrets()
"""This process's own: a server's memory is one, as the operator is."""
