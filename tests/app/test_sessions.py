"""Sessions and tickets expire, and their tables do not grow with expired ones."""

from app.web.sessions import IDLE_S, MAX_AGE_S, RENEW_S, Sessions, Tickets
from tests.clock import Clock


def test_a_token_is_long_and_random_and_only_its_hash_is_kept():
    sessions = Sessions(Clock())
    tokens = {sessions.open() for _ in range(50)}
    assert len(tokens) == 50
    assert all(len(token) >= 43 for token in tokens)
    assert not any(token in repr(vars(sessions)) for token in tokens)


def test_an_unknown_token_is_no_session():
    sessions = Sessions(Clock())
    assert not sessions.use("")
    assert not sessions.use("x" * 43)
    sessions.close("x" * 43)


def test_sessions_that_ended_are_forgotten():
    clock = Clock()
    sessions = Sessions(clock)
    for _ in range(20):
        sessions.open()
    clock.now += IDLE_S + 1
    sessions.open()
    assert len(sessions._table) == 1


def test_the_cookie_is_sent_again_only_when_it_is_old():
    clock = Clock()
    sessions = Sessions(clock)
    token = sessions.open()
    assert sessions.cookie_age_s(token) is None
    clock.now += RENEW_S
    assert sessions.cookie_age_s(token) == IDLE_S
    assert sessions.cookie_age_s(token) is None


def test_a_session_in_constant_use_ends_after_a_week():
    clock = Clock()
    sessions = Sessions(clock)
    token = sessions.open()
    end_s = clock.now + MAX_AGE_S
    while clock.now + 3600 <= end_s:
        clock.now += 3600
        assert sessions.use(token)
        assert clock.now + (sessions.cookie_age_s(token) or 0) <= end_s
    clock.now = end_s + 1
    assert not sessions.use(token)


def test_a_ticket_is_valid_once_and_for_a_minute():
    clock = Clock()
    tickets = Tickets(clock)
    first, late = tickets.make(), tickets.make()
    assert tickets.take(first)
    assert not tickets.take(first)
    clock.now += Tickets.VALID_S + 1
    assert not tickets.take(late)
    assert not tickets.take("")


def test_unused_tickets_are_forgotten():
    clock = Clock()
    tickets = Tickets(clock)
    for _ in range(20):
        tickets.make()
    clock.now += Tickets.VALID_S + 1
    tickets.make()
    assert len(tickets._table) == 1
