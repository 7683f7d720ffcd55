"""Parallel work on all nodes in a thread pool. A slow or dead node does not delay the others."""

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
"""Measured with 128 sshd: 32 threads are 1.5 times as fast as 8, and more threads are not faster."""

A = TypeVar("A")
T = TypeVar("T")


class _NoThreadError(Exception):
    """No thread could be started."""


class GroupError(Exception, Generic[T]):
    """Some nodes failed. `failures` has their errors, `results` the answers of the others, both by rank."""

    def __init__(self, results: Mapping[int, T], failures: Mapping[int, NodeError]) -> None:
        self.results = results
        self.failures = failures
        super().__init__("; ".join(f"node {rank}: {error}" for rank, error in failures.items()))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return one problem per failed node, in rank order."""
        return tuple(self.failures[rank].problem for rank in sorted(self.failures))


def on_all(items: Sequence[A] | Mapping[int, A], fn: Callable[[int, A], T], timeout_s: float) -> dict[int, T]:
    """Call `fn(rank, item)` for every item in parallel and return the answers by rank. Raises GroupError."""
    results, failures = try_all(items, fn, timeout_s)
    if failures:
        raise GroupError(results, failures)
    return results


def try_all(
    items: Sequence[A] | Mapping[int, A], fn: Callable[[int, A], T], timeout_s: float
) -> tuple[dict[int, T], dict[int, NodeError]]:
    """Return (results, failures) by rank. A call that takes longer than `timeout_s` fails with NodeError(timeout).

    Other errors than NodeError are bugs and are raised.
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
    """Run the calls in at most POOL threads.

    They are daemon threads: at exit Python would wait for a ThreadPoolExecutor, and so for a call that hangs.
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
            except BaseException as error:  # the waiting thread raises it again
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
    """Return the result or the error of every node by rank, as try_all does."""
    results, failures = try_all(items, fn, timeout_s)
    return {**results, **failures}


def _no_thread(item: object, rank: int, error: Exception) -> NodeError:
    return NodeError("local_resources", _name_of(item, rank), detail=str(error))


def _name_of(item: object, rank: int) -> str:
    return str(getattr(item, "name", None) or getattr(item, "address", None) or rank)
