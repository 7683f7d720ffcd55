"""The configurations that an engine's own parser has accepted, so that it is not started again for the same one."""

import threading
from collections.abc import Hashable, Mapping

from backend.cluster.program_answers.checks import Parsed

LIMIT = 64
"""Number of configurations above which the next ones replace all others."""


class AcceptedConfigurations:
    """Answers of parsers that accepted, by machine, environment and configuration. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[Hashable, Parsed] = {}

    def answers(self) -> Mapping[Hashable, Parsed]:
        """Return a copy, which stays complete while another thread adds answers."""
        with self._lock:
            return dict(self._answers)

    def add(self, answers: Mapping[Hashable, Parsed]) -> None:
        """Keep the answers."""
        with self._lock:
            if len(self._answers) > LIMIT:
                self._answers.clear()
            self._answers.update(answers)
