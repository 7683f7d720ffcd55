"""The throttle delays a client that guesses passwords. Checks for unknown clients use at most one core."""

import asyncio
import threading

import pytest

from app.web.login_throttle import PasswordChecks, Throttle, network_of
from tests.clock import Clock


def test_each_further_wrong_password_doubles_the_wait_up_to_a_maximum():
    clock = Clock()
    throttle = Throttle(clock)
    assert [throttle.admit("a") for _ in range(Throttle.FREE)] == [0] * Throttle.FREE
    for wait_s in (1, 2, 4, 8, 16, 30, 30):
        assert throttle.admit("a") == wait_s
        assert throttle.admit("b" * int(wait_s)) == 0, "another client does not wait"
        clock.now += wait_s
        assert throttle.admit("a") == 0


def test_the_count_ends_after_a_time_without_attempts_and_after_the_right_password():
    clock = Clock()
    throttle = Throttle(clock)
    later = Throttle.FORGET_S + 1
    for forget in (lambda: throttle.succeeded("a"), lambda: setattr(clock, "now", clock.now + later)):
        assert [throttle.admit("a") for _ in range(Throttle.FREE)] == [0] * Throttle.FREE
        assert throttle.admit("a") > 0
        forget()


def test_simultaneous_attempts_have_no_advantage():
    throttle = Throttle(Clock())
    assert sum(throttle.admit("a") == 0 for _ in range(50)) == Throttle.FREE


def test_the_number_of_remembered_clients_has_a_maximum():
    throttle = Throttle(Clock())
    for number in range(Throttle.MOST_CLIENTS + 100):
        throttle.admit(str(number))
    assert len(throttle._counts) == Throttle.MOST_CLIENTS


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address", "no address"),
    ],
)
def test_a_client_is_an_ipv4_address_or_an_ipv6_network(address, client):
    assert network_of(address) == client


def test_unknown_clients_wait_for_each_other_and_a_known_client_for_none_of_them():
    class Slow:
        def __init__(self) -> None:
            self.goes_on = threading.Event()
            self.under_way = self.most = 0

        def matches(self, typed: str) -> bool:
            if typed == "right":
                return True
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.goes_on.wait(60)
            self.under_way -= 1
            return False

    async def flood() -> None:
        slow = Slow()
        checks = PasswordChecks(slow)  # type: ignore[arg-type]
        guesses = []
        while checks.has_room(known=False):
            guesses.append(asyncio.ensure_future(checks.matches("wrong", known=False)))
            await asyncio.sleep(0)
        assert len(guesses) == PasswordChecks.MOST_WAITING
        assert checks.has_room(known=True)
        assert await checks.matches("right", known=True)
        assert not any(guess.done() for guess in guesses)
        slow.goes_on.set()
        assert await asyncio.gather(*guesses) == [False] * len(guesses)
        assert slow.most == 1
        assert checks.has_room(known=False)

    asyncio.run(flood())
