"""Limits password guessing: waits after wrong passwords of a client, and few simultaneous checks."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from app.web.passwords import PasswordHash


def network_of(address: str) -> str:
    """Return the client of an address: the address itself for IPv4, its /64 network for IPv6."""
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
    is_refusal_recorded: bool = False


class Throttle:
    """Counts of wrong passwords. After FREE of them, each further one doubles the wait of that client.

    The wait has a maximum, and a count ends after FORGET_S without attempts. The throttle only slows guessing. The
    length of the password is the defence. `clock` must be monotonic.
    """

    FREE = 3
    LONGEST_WAIT_S = 30.0
    FORGET_S = 900.0
    MOST_CLIENTS = 4096
    """Maximum counts. A new one replaces the count with the oldest attempt."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, _Count] = OrderedDict()
        self._lock = threading.Lock()

    def admit(self, client: str) -> float:
        """Return 0 if this client may make an attempt now, else the seconds to wait.

        An admitted attempt counts as wrong until `succeeded` is called. So simultaneous attempts have no advantage.
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
            count.is_refusal_recorded = False
            self._counts[client] = count
            self._counts.move_to_end(client)
            if len(self._counts) > self.MOST_CLIENTS:
                self._counts.popitem(last=False)
            return 0.0

    def is_first_refusal(self, client: str) -> bool:
        """Return whether this is the client's first refusal since its last admitted attempt. Only that is recorded."""
        with self._lock:
            count = self._counts.get(client)
            if count is None or count.is_refusal_recorded:
                return False
            count.is_refusal_recorded = True
            return True

    def succeeded(self, client: str) -> None:
        """Forget the client's count, because its last admitted attempt was right."""
        with self._lock:
            self._counts.pop(client, None)

    def _delay_s(self, count: _Count) -> float:
        over = count.failures - self.FREE
        return 0.0 if over < 0 else min(self.LONGEST_WAIT_S, 2.0 ** min(over, 16))


class PasswordChecks:
    """Checks one password at a time for unknown clients, and one at a time for known clients.

    A check takes 0.1 s of a core and 32 MiB. All unknown clients together use at most one core, and known clients do
    not wait for them.
    """

    MOST_WAITING = 8
    BUSY_S = 1.0
    """Wait of a client if too many attempts are waiting."""

    def __init__(self, password: PasswordHash) -> None:
        self._password = password
        self._queues = {known: _Queue() for known in (False, True)}

    def has_room(self, *, known: bool) -> bool:
        """Return whether one more attempt may wait."""
        return self._queues[known].waiting < self.MOST_WAITING

    async def matches(self, typed: str, *, known: bool) -> bool:
        """Return whether the password is right. The event loop serves other requests meanwhile."""
        queue = self._queues[known]
        queue.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(queue.pool, self._password.matches, typed)
        finally:
            queue.waiting -= 1


class _Queue:
    def __init__(self) -> None:
        self.waiting = 0
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="password")
