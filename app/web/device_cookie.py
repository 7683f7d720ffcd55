"""Device cookies mark browsers that have logged in before, so that password guessing does not lock out the operator.

The cookie gives no access. It only gives its browser a separate count of wrong passwords (OWASP, "Slow Down Online
Guessing Attacks with Device Cookies").
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping

AGE_S = 365 * 24 * 3600
_COOKIE = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{64})")


class DeviceCookies:
    """Signs and reads device cookies. The key changes with the password, which makes all cookies invalid."""

    def __init__(self, key: bytes, name: str) -> None:
        self._key = key
        self.name = name

    def make(self) -> str:
        """Return the cookie of a new device."""
        device = secrets.token_hex(16)
        return f"{device}.{self._sign(device)}"

    def device(self, cookies: Mapping[str, str]) -> str | None:
        """Return the device of these cookies. None: they hold no valid device cookie."""
        match = _COOKIE.fullmatch(cookies.get(self.name, ""))
        if match is None or not hmac.compare_digest(self._sign(match[1]), match[2]):
            return None
        return match[1]

    def _sign(self, device: str) -> str:
        return hmac.new(self._key, device.encode(), hashlib.sha256).hexdigest()
