"""Many tabs with the same request at once cost one answer, and no tab waits for another request."""

import threading

import pytest

from app.monitor.shared_answers import Shared
from tests.clock import Clock


def test_all_who_ask_at_once_get_the_one_answer_that_the_first_makes():
    shared, calls, begun, may_end = Shared(Clock(0.0), fresh_s=1.0, size=4), [], threading.Event(), threading.Event()

    def make() -> int:
        calls.append(1)
        begun.set()
        may_end.wait(60)
        return 7

    result: list[int] = []
    threads = [threading.Thread(target=lambda: result.append(shared.get("run", make))) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    assert shared.get("another", lambda: 8) == 8, "while that of the first is being made"
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert (result, len(calls)) == ([7] * 20, 1)


def test_an_answer_is_made_anew_when_it_is_old_or_of_another_version_or_was_forgotten():
    clock = Clock(0.0)
    shared, calls = Shared(clock, fresh_s=1.0, size=4), iter(range(9))
    first, second = object(), object()
    assert [shared.get("a", lambda: next(calls), version) for version in (first, first, second)] == [0, 0, 1]
    clock.now = 1.0
    assert shared.get("a", lambda: next(calls), second) == 2
    shared.forget("a")
    assert shared.get("a", lambda: next(calls), second) == 3


def test_what_goes_wrong_is_raised_and_not_kept():
    shared = Shared(Clock(0.0), fresh_s=1.0, size=4)
    with pytest.raises(LookupError):
        shared.get("a", lambda: {}["missing"])
    assert shared.get("a", lambda: 1) == 1


def test_only_the_newest_answers_stay():
    shared, calls = Shared(Clock(0.0), fresh_s=9.0, size=2), []
    for key in ("a", "b", "c", "a", "c"):
        shared.get(key, lambda key=key: calls.append(key))
    assert calls == ["a", "b", "c", "a"]
