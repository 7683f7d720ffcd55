"""Slows password guessing: counts wrong passwords of each client, and limits simultaneous checks."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from app.web.passwords import PasswordHash


def network_of(address: str) -> str:
    """The client that an address counts as: an IPv4 address itself, the /64 of an IPv6 address."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    return str(ip.ipv4_mapped) if ip.ipv4_mapped else f"{IPv6Address(int(ip) >> 64 << 64)}/64"


@dataclass(slots=True)
class _Count:
    failures: int = 0
    last_s: float = float("-inf")
    is_told: bool = False


class Throttle:
    """Wrong passwords of each client: after a few, each further one doubles that client's wait.

    The wait has a maximum, and the count is forgotten after a while without attempts. The defence is the length of the
    password; this only slows guessing. `clock` must be monotonic.
    """

    FREE = 3
    LONGEST_WAIT_S = 30.0
    FORGET_S = 900.0
    MOST_CLIENTS = 4096
    """How many are remembered; the one that was quiet longest is forgotten first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, _Count] = OrderedDict()
        self._lock = threading.Lock()

    def admit(self, client: str) -> float:
        """0 if this client may make an attempt now, else the seconds to wait.

        An admitted attempt counts as wrong until `succeeded` is called, so simultaneous attempts gain nothing.
        """
        now = self._clock()
        with self._lock:
            count = self._counts.get(client) or _Count()
            if now - count.last_s > self.FORGET_S:
                count = _Count()
            wait_s = count.last_s + self._delay_s(count) - now
            if wait_s > 0:
                return wait_s
            count.failures += 1
            count.last_s = now
            count.is_told = False
            self._counts[client] = count
            self._counts.move_to_end(client)
            if len(self._counts) > self.MOST_CLIENTS:
                self._counts.popitem(last=False)
            return 0.0

    def is_news(self, client: str) -> bool:
        """Whether this is the client's first refusal since its last admitted attempt; only that one is recorded."""
        with self._lock:
            count = self._counts.get(client)
            if count is None or count.is_told:
                return False
            count.is_told = True
            return True

    def succeeded(self, client: str) -> None:
        """The client's last admitted attempt was right."""
        with self._lock:
            self._counts.pop(client, None)

    def _delay_s(self, count: _Count) -> float:
        over = count.failures - self.FREE
        return 0.0 if over < 0 else min(self.LONGEST_WAIT_S, 2.0 ** min(over, 16))


class PasswordChecks:
    """Checks passwords one at a time for strangers, and one at a time for clients that are known.

    A check costs a tenth of a second of a core and 32 MiB. All strangers together use one core at most, and a known
    client does not wait behind them.
    """

    MOST_WAITING = 8
    BUSY_S = 1.0
    """How long to wait where too many are waiting already."""

    def __init__(self, password: PasswordHash) -> None:
        self._password = password
        self._lines = {known: _Line() for known in (False, True)}

    def has_room(self, *, known: bool) -> bool:
        """Whether one more may wait."""
        return self._lines[known].waiting < self.MOST_WAITING

    async def matches(self, typed: str, *, known: bool) -> bool:
        """Whether that is the password. Meanwhile the event loop serves other requests."""
        line = self._lines[known]
        line.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(line.pool, self._password.matches, typed)
        finally:
            line.waiting -= 1


class _Line:
    def __init__(self) -> None:
        self.waiting = 0
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="password")
