"""The token with which Prometheus reads /metrics. It gives access to that path only."""

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

from app.private_file import PrivateFileError, read_private

METRICS_PATH = "/metrics"
SHORTEST = 32
"""Minimum length. Guesses are not throttled, so the token must be long and random."""


@dataclass(frozen=True, slots=True)
class ScrapeToken:
    """A token, kept as its hash."""

    _digest: bytes = field(repr=False)

    @classmethod
    def of(cls, token: str) -> "ScrapeToken":
        """Return the token whose text is `token`."""
        return cls(_digest(token))

    @classmethod
    def read(cls, path: Path) -> "ScrapeToken":
        """Read the first line of a private file. Raises PrivateFileError if it is unusable or too short."""
        line = (read_private(path) or [""])[0]
        if len(line) < SHORTEST:
            raise PrivateFileError("metrics_token_too_short", path=str(path), shortest=SHORTEST)
        return cls.of(line)

    def matches(self, authorization: str | None) -> bool:
        """Return whether an Authorization header is `Bearer` and this token, in constant time."""
        scheme, _, token = (authorization or "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(self._digest, _digest(token.strip()))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
