"""The same work on all nodes at once, by a pool: one slow or dead node holds up no other."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Generic, TypeVar

from backend.cluster.node import NodeError
from backend.cluster.threads import start_thread
from backend.job.problems import Problem

POOL = 16
"""Measured against 128 sshd: 8 -> 32 threads is 1.5 times faster, more is not."""

A = TypeVar("A")
T = TypeVar("T")


class _NoThreadError(Exception):
    """Not one thread could be started."""


class GroupError(Exception, Generic[T]):
    """Some nodes failed. `failures` says which and why, `results` what the others answered, both by rank."""

    def __init__(self, results: Mapping[int, T], failures: Mapping[int, NodeError]) -> None:
        self.results = results
        self.failures = failures
        super().__init__("; ".join(f"node {rank}: {error}" for rank, error in failures.items()))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """One per node that failed, in rank order."""
        return tuple(self.failures[rank].problem for rank in sorted(self.failures))


def on_all(items: Sequence[A] | Mapping[int, A], fn: Callable[[int, A], T], timeout_s: float) -> dict[int, T]:
    """`fn(rank, item)` for every item, in parallel; the answers by rank. Raises GroupError with both kinds of ends."""
    results, failures = try_all(items, fn, timeout_s)
    if failures:
        raise GroupError(results, failures)
    return results


def try_all(
    items: Sequence[A] | Mapping[int, A], fn: Callable[[int, A], T], timeout_s: float
) -> tuple[dict[int, T], dict[int, NodeError]]:
    """Like on_all, but answers (results, failures). What does not end within `timeout_s` is a NodeError(timeout).

    Errors other than NodeError are bugs and are raised.
    """
    ranked = dict(items) if isinstance(items, Mapping) else dict(enumerate(items))
    results: dict[int, T] = {}
    failures: dict[int, NodeError] = {}
    futures: dict[int, Future[T]] = {rank: Future() for rank in ranked}
    try:
        _start_pool([(futures[rank], partial(fn, rank, item)) for rank, item in ranked.items()])
        deadline = time.monotonic() + timeout_s
        for rank, future in futures.items():
            wait([future], timeout=max(0.0, deadline - time.monotonic()))
            try:
                if future.done():
                    results[rank] = future.result()
                else:
                    failures[rank] = NodeError("timeout", _name_of(ranked[rank], rank), seconds=round(timeout_s))
            except NodeError as error:
                failures[rank] = error
    except _NoThreadError as error:
        failures = {rank: _no_thread(ranked[rank], rank, error) for rank in ranked}
    finally:
        for future in futures.values():
            future.cancel()
    for rank, failure in failures.items():
        failure.rank = rank
    return dict(sorted(results.items())), dict(sorted(failures.items()))


def _start_pool(work: Sequence[tuple[Future[T], Callable[[], T]]]) -> None:
    """Do the work in at most POOL threads.

    They are daemons: at its exit Python waits for the threads of a ThreadPoolExecutor, and so for a call that hangs.
    """
    left = deque(work)

    def run() -> None:
        while True:
            try:
                future, call = left.popleft()
            except IndexError:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # raised again in the waiting thread
                future.set_exception(error)

    for number in range(min(POOL, len(work))):
        try:
            start_thread(run, f"node_{number}")
        except OSError as error:  # no more threads; the started ones do the work
            if number == 0:
                raise _NoThreadError(str(error)) from error
            return


def ends_of_all(
    items: Sequence[A] | Mapping[int, A], fn: Callable[[int, A], T], timeout_s: float
) -> dict[int, T | NodeError]:
    """Like try_all, with either end of each by rank."""
    results, failures = try_all(items, fn, timeout_s)
    return {**results, **failures}


def _no_thread(item: object, rank: int, error: Exception) -> NodeError:
    return NodeError("local_resources", _name_of(item, rank), detail=str(error))


def _name_of(item: object, rank: int) -> str:
    return str(getattr(item, "name", None) or getattr(item, "address", None) or rank)
