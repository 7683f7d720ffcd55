"""The operator's password. Only its scrypt hash is stored."""

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from app.private_file import PrivateFileError, read_private, write_atomically

SHORTEST = 12
"""Minimum length of a chosen password. A generated one has 20 of 32 letters, which is 100 bits."""

COST = 2**15
"""scrypt's N. OWASP recommends 2^17 with r=8, p=1. This one needs 32 MiB, because training may use the machine."""
LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""32 letters and digits that do not look alike."""


class PasswordError(PrivateFileError):
    """A password or a stored hash cannot be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PasswordHash:
    """The scrypt hash of a password."""

    salt: bytes
    digest: bytes = field(repr=False)
    cost: int = COST
    """scrypt's N of this hash, a power of two."""

    @classmethod
    def of(cls, password: str, cost: int = COST, salt: bytes | None = None) -> "PasswordHash":
        """Return the hash of a password, with a new salt unless one is given."""
        salt = salt or secrets.token_bytes(16)
        return cls(salt=salt, digest=_scrypt(password, salt, cost), cost=cost)

    def matches(self, password: str) -> bool:
        """Return whether this is the password. The time does not depend on the number of right characters."""
        return hmac.compare_digest(self.digest, _scrypt(password, self.salt, self.cost))

    @property
    def name(self) -> str:
        """A short public name. Servers with the same host name use it to keep separate cookies."""
        return hashlib.sha256(self.salt).hexdigest()[:8]


def random_password() -> str:
    """Return a password of 100 random bits, in groups that are easy to type."""
    groups = ["".join(secrets.choice(LETTERS) for _ in range(4)) for _ in range(5)]
    return "-".join(groups)


def read_password(path: Path) -> str:
    """Return the first line of a private file. Raises PrivateFileError, and PasswordError if it is too short."""
    line = (read_private(path) or [""])[0]
    if len(line) < SHORTEST:
        raise PasswordError("password_too_short", path=str(path), shortest=SHORTEST)
    return line


def write_password(home: Path, password: str) -> Path:
    """Write a new password into a new private file, and return its path. The operator reads it there."""
    path = home / f"password-{int(time.time())}.txt"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(password + "\n")
    return path


def load_hash(home: Path) -> PasswordHash | None:
    """Return the hash that an earlier start stored, or None. Raises PasswordError if the file is damaged."""
    path = home / "password.json"
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="ascii"))
        hashed = PasswordHash(
            salt=base64.b64decode(stored["salt"]),
            digest=base64.b64decode(stored["digest"]),
            cost=stored["scrypt"]["n"],
        )
        hashed.matches("")  # raises now, not at the first log-in, if scrypt refuses the values
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise PasswordError("password_store_damaged", path=str(path)) from error
    return hashed


def store_hash(home: Path, hashed: PasswordHash) -> None:
    """Store the hash for the next start. Only this user can read it."""
    stored = {"salt": base64.b64encode(hashed.salt).decode(), "digest": base64.b64encode(hashed.digest).decode()}
    text = json.dumps({"protocol": 1, "scrypt": {"n": hashed.cost, "r": 8, "p": 1}, **stored})
    write_atomically(home / "password.json", text, replace=True)


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=cost, r=8, p=1, maxmem=2**26, dklen=32)
