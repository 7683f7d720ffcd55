"""The operator's password: made, checked and kept only as a scrypt hash."""

import base64
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from app.private_file import PrivateFileError, read_private

SHORTEST = 12
"""Fewest characters of a password someone chose; ours has 20 of 32 letters, 100 bits."""

COST = 2**15
"""scrypt's N. OWASP password storage cheat sheet: N=2^17, r=8, p=1; here 32 MiB: laptops run this beside training."""
LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""32 letters and digits without look-alikes."""


class PasswordError(PrivateFileError):
    """A password, or the stored hash of one, that cannot be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PasswordHash:
    """A password that can be checked but not read back."""

    salt: bytes
    digest: bytes = field(repr=False)
    cost: int = COST
    """scrypt's N this was made with, a power of two."""

    @classmethod
    def of(cls, password: str, cost: int = COST, salt: bytes | None = None) -> "PasswordHash":
        """The hash of a password, with a new salt unless one is given."""
        salt = salt or secrets.token_bytes(16)
        return cls(salt=salt, digest=_scrypt(password, salt, cost), cost=cost)

    def matches(self, password: str) -> bool:
        """Whether this is the password, in time that does not depend on how much of it is right."""
        return hmac.compare_digest(self.digest, _scrypt(password, self.salt, self.cost))

    @property
    def name(self) -> str:
        """A short public name, so that servers behind one host name keep cookies of their own."""
        return hashlib.sha256(self.salt).hexdigest()[:8]


def random_password() -> str:
    """A password of 100 random bits in groups that can be typed, without look-alike letters."""
    groups = ["".join(secrets.choice(LETTERS) for _ in range(4)) for _ in range(5)]
    return "-".join(groups)


def read_password(path: Path) -> str:
    """The first line of a private file; PrivateFileError, PasswordError when it is too short."""
    line = (read_private(path) or [""])[0]
    if len(line) < SHORTEST:
        raise PasswordError("password_too_short", path=str(path), shortest=SHORTEST)
    return line


def load_hash(home: Path) -> PasswordHash | None:
    """The hash an earlier start stored, or None; PasswordError when the file is damaged."""
    path = home / "password.json"
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="ascii"))
        made = PasswordHash(
            salt=base64.b64decode(stored["salt"]),
            digest=base64.b64decode(stored["digest"]),
            cost=stored["scrypt"]["n"],
        )
        made.matches("")  # what scrypt does not take is told now, not at the first log-in
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise PasswordError("password_store_damaged", path=str(path)) from error
    return made


def store_hash(home: Path, hashed: PasswordHash) -> None:
    """Keep the hash for the next start, readable by this user alone."""
    stored = {"salt": base64.b64encode(hashed.salt).decode(), "digest": base64.b64encode(hashed.digest).decode()}
    temporary = home / "password.json.new"
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"protocol": 1, "scrypt": {"n": hashed.cost, "r": 8, "p": 1}, **stored}, file)
    temporary.replace(home / "password.json")


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=cost, r=8, p=1, maxmem=2**26, dklen=32)
