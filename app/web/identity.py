"""The server's identity: its own host name, and the key that signs its device cookies."""

import base64
import hmac
import json
import logging
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from app.private_file import write_atomically
from app.web.passwords import LETTERS, PasswordHash

_log = logging.getLogger(__name__)
_FILE = "identity.json"
_NAME_LETTERS = 16
"""Of 32 letters: 80 bits. Nobody guesses the name, so whoever uses it has seen it where the server printed it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Made once for a home folder; the same after every restart."""

    host: str
    """`mb-<random>.localhost`. Browsers resolve it to their own machine, and send its cookies to no other name.

    A request without a session never learns it: a program on another port could otherwise lead the browser to
    `http://<this name>:<its port>/` and collect the cookies."""

    salt: bytes
    """For the hash of a password that comes from a file: the same password has the same hash after a restart."""

    secret: bytes = field(repr=False)
    """What the keys of device cookies are made from."""

    def device_key(self, password: PasswordHash) -> bytes:
        """The key that signs device cookies; another password has another key."""
        return hmac.digest(self.secret, password.salt + password.digest, "sha256")

    def to_json(self) -> str:
        """The file's text."""
        coded = {"salt": base64.b64encode(self.salt).decode(), "secret": base64.b64encode(self.secret).decode()}
        return json.dumps({"protocol": 1, "host": self.host, **coded})


def load_identity(home: Path) -> Identity:
    """The identity of the home folder, made at the first call.

    If the folder cannot be written, the identity lasts as long as this process, and a warning is logged.
    """
    path = home / _FILE
    for replace in (False, True):
        if (stored := _read(path)) is not None:
            return stored
        made = _made()
        try:
            write_atomically(path, made.to_json(), replace=replace)
        except FileExistsError:
            continue  # another server has just made it, or it is damaged
        except OSError as error:
            _log.warning("%s cannot be written (%s): the page's address changes with the next start", path, error)
        return made
    return made


def identity_file(home: Path) -> Path:
    """Where it is kept, readable by this user alone."""
    return home / _FILE


def _made() -> Identity:
    name = "".join(secrets.choice(LETTERS) for _ in range(_NAME_LETTERS))
    return Identity(host=f"mb-{name}.localhost", salt=secrets.token_bytes(16), secret=secrets.token_bytes(32))


def _read(path: Path) -> Identity | None:
    try:
        stored = json.loads(path.read_text(encoding="ascii"))
        salt, secret = (base64.b64decode(stored[name], validate=True) for name in ("salt", "secret"))
        host = stored["host"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s cannot be read (%s): a new one takes its place", path, error)
        return None
    is_whole = isinstance(host, str) and host.endswith(".localhost") and len(salt) >= 16 and len(secret) >= 32
    return Identity(host=host, salt=salt, secret=secret) if is_whole else None
