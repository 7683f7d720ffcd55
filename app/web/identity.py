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
"""16 of 32 letters are 80 bits. Nobody can guess the name, so whoever uses it has seen the server print it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The identity of a home folder. It does not change with a restart."""

    host: str
    """`mb-<random>.localhost`. Browsers resolve it to their own machine, and send its cookies to no other name.

    A response without a session never contains it. Otherwise a program on another port could send the browser to
    `http://<this name>:<its port>/` and collect the cookies."""

    salt: bytes
    """Salt for a password from a file. So the same password has the same hash after a restart."""

    secret: bytes = field(repr=False)
    """The keys of device cookies are derived from it."""

    def device_key(self, password: PasswordHash) -> bytes:
        """Return the key that signs device cookies. It changes with the password."""
        return hmac.digest(self.secret, password.salt + password.digest, "sha256")

    def to_json(self) -> str:
        """Return the text of the file."""
        coded = {"salt": base64.b64encode(self.salt).decode(), "secret": base64.b64encode(self.secret).decode()}
        return json.dumps({"protocol": 1, "host": self.host, **coded})


def load_identity(home: Path) -> Identity:
    """Return the identity of the home folder. The first call creates it.

    If the folder is read-only, the identity lasts as long as this process, and a warning is logged.
    """
    path = home / _FILE
    for replace in (False, True):
        if (stored := _read(path)) is not None:
            return stored
        identity = _new()
        try:
            write_atomically(path, identity.to_json(), replace=replace)
        except FileExistsError:
            continue  # another server has just written it, or it is damaged
        except OSError as error:
            _log.warning("%s cannot be written (%s): the page's address changes with the next start", path, error)
        return identity
    return identity


def _new() -> Identity:
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
        _log.warning("%s cannot be read (%s): a new one replaces it", path, error)
        return None
    is_complete = isinstance(host, str) and host.endswith(".localhost") and len(salt) >= 16 and len(secret) >= 32
    return Identity(host=host, salt=salt, secret=secret) if is_complete else None
