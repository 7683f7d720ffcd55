import subprocess
import sys
import threading

import pytest

from backend.cluster.node import NodeError
from backend.cluster.node_group import POOL, GroupError, on_all, try_all
from tests.threads import without_threads


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


HANGING = """\
import threading
from backend.cluster.node_group import try_all
print(try_all([0, 1], lambda rank, item: rank and threading.Event().wait(), 0.2)[1][1].code, flush=True)
"""


def test_a_call_that_hangs_keeps_no_process_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("timeout\n", 0), done.stderr


def test_no_more_than_the_pool_work_at_once_and_all_have_their_turn() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def work(rank: int, item: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.005)
        with lock:
            now[0] -= 1
        return item

    assert on_all(range(5 * POOL), work, 60) == {rank: rank for rank in range(5 * POOL)}
    assert 1 < most[0] <= POOL


def test_what_has_not_begun_when_the_time_is_over_is_never_begun() -> None:
    release, begun = threading.Event(), []

    def work(rank: int, item: int) -> None:
        begun.append(rank)
        release.wait()

    _, failures = try_all(range(2 * POOL), work, 0.3)
    release.set()
    assert len(failures) == 2 * POOL
    assert len(begun) == POOL


def test_a_machine_without_a_thread_left_blames_no_node() -> None:
    with without_threads():
        _, failures = try_all(["a", "b"], lambda rank, item: item, 5)
    assert [(failure.code, failure.is_local) for failure in failures.values()] == [("local_resources", True)] * 2
