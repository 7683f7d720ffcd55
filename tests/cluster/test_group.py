import threading

import pytest

from backend.cluster.group import GroupError, on_all, try_all
from backend.cluster.node import NodeError


def test_answers_come_by_rank() -> None:
    assert on_all(["a", "b"], lambda rank, item: f"{item}{rank}", 5) == {0: "a0", 1: "b1"}


def test_all_work_at_once() -> None:
    together = threading.Barrier(8, timeout=60)
    assert len(on_all(range(8), lambda rank, item: together.wait(), 60)) == 8


def test_failures_are_raised_together_with_what_the_others_answered() -> None:
    def work(rank: int, name: str) -> str:
        if rank == 1:
            raise NodeError("lost", name, detail="gone")
        return name

    with pytest.raises(GroupError) as caught:
        on_all(["a", "b", "c"], work, 5)
    assert caught.value.results == {0: "a", 2: "c"}
    (problem,) = caught.value.problems
    assert (problem.code, problem.node, problem.field) == ("lost", "b", "cluster.hosts[1].address")


def test_one_that_hangs_is_a_timeout_and_holds_up_no_other() -> None:
    release = threading.Event()
    try:
        results, failures = try_all(["a", "b"], lambda rank, item: release.wait() if rank else item, 1)
    finally:
        release.set()
    assert results == {0: "a"}
    assert failures[1].code == "timeout"


def test_a_bug_is_not_taken_for_a_node_that_failed() -> None:
    with pytest.raises(ZeroDivisionError):
        try_all([0], lambda rank, item: 1 / item, 5)
