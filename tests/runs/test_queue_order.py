"""The next run of the queue: one run per node, in the user's order, and several at once if they share no node."""

import random

import pytest

from backend.job.mapping import dump_job
from backend.job.problems import ProblemsError
from backend.runs.states import EventKind, RunState
from backend.runs.store import queue_order, run_store
from backend.runs.store.queue_order import Waiting, reasons
from backend.runs.store.store import Store
from tests.cluster.jobs import make_job


def _waiting(run: str, addresses: str, not_before: float = 0.0) -> Waiting:
    return Waiting(run=run, addresses=tuple(addresses), not_before=not_before)


def ready(queue: list[Waiting], claims: dict[str, str], now: float) -> list[str]:
    return [run for run, why in reasons(queue, claims, now).items() if why is None]


def test_runs_that_share_no_node_start_side_by_side() -> None:
    assert ready([_waiting("1", "ab"), _waiting("2", "cd"), _waiting("3", "bc")], {}, 0.0) == ["1", "2"]


def test_a_run_waits_for_a_node_that_another_holds_and_is_not_overtaken_on_its_others() -> None:
    queue = [_waiting("1", "ab"), _waiting("2", "b"), _waiting("3", "c")]
    assert ready(queue, {"a": "running"}, 0.0) == ["3"]


def test_a_restart_keeps_its_own_nodes_and_starts_when_it_is_due() -> None:
    queue = [_waiting("again", "ab", not_before=10.0), _waiting("2", "b")]
    claims = {"a": "again", "b": "again"}
    assert ready(queue, claims, 9.0) == []
    assert ready(queue, claims, 10.0) == ["again"]


def test_each_run_says_what_it_waits_for() -> None:
    queue = [_waiting("1", "ab"), _waiting("2", "bc"), _waiting("3", "d", not_before=10.0), _waiting("4", "e")]
    values = {run: why and (why.code, dict(why.values)) for run, why in reasons(queue, {"b": "0"}, 9.0).items()}
    assert values == {
        "1": ("waits_for_run", {"node": "b", "run": "0"}),
        "2": ("waits_for_run", {"node": "b", "run": "0"}),
        "3": ("waits_to_restart", {}),
        "4": None,
    }
    assert reasons(queue, {}, 9.0)["2"].values == {"node": "b", "run": "1"}  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(20))
def test_every_run_gets_its_turn_alone_on_its_nodes_and_none_overtakes_one_it_shares_a_node_with(seed: int) -> None:
    chance = random.Random(seed)
    queue = [_waiting(str(i), "".join(chance.sample("abcdef", chance.randint(1, 4)))) for i in range(12)]
    nodes = {queued.run: queued.addresses for queued in queue}
    started: list[str] = []
    claims: dict[str, str] = {}
    while queue or claims:
        for run in ready(queue, claims, 0.0):
            assert claims.keys().isdisjoint(nodes[run])
            claims |= dict.fromkeys(nodes[run], run)
            started.append(run)
        queue = [queued for queued in queue if queued.run not in started]
        assert claims, "nothing runs, nothing starts"
        ended = chance.choice(sorted(set(claims.values())))
        claims = {address: run for address, run in claims.items() if run != ended}
    assert sorted(started) == sorted(nodes)
    for index, run in enumerate(started):
        assert all(
            int(later) > int(run) for later in started[index:] if set(nodes[later]) & set(nodes[run]) and later != run
        )


def _enqueue(store: Store, *runs: str) -> None:
    def write(connection) -> None:  # type: ignore[no-untyped-def]
        for run in runs:
            job = dump_job(make_job(nodes=1))
            run_store.create_run(connection, run, name=run, engine="e", job=job, addresses=[], time=1.0)
            queue_order.add(connection, run)

    store.write(write)


def _order(store: Store) -> list[str]:
    with store.read() as connection:
        return [queued.run for queued in queue_order.waiting(connection)]


@pytest.mark.parametrize(
    ("run", "where", "order"),
    [
        ("c", "first", "cabd"),
        ("c", "up", "acbd"),
        ("a", "up", "abcd"),
        ("b", "down", "acbd"),
        ("d", "down", "abcd"),
        ("a", "last", "bcda"),
    ],
)
def test_the_order_is_the_users(store: Store, run: str, where: queue_order.Move, order: str) -> None:
    _enqueue(store, *"abcd")
    store.write(lambda connection: queue_order.move(connection, run, where))
    assert _order(store) == list(order)
    _enqueue(store, "e")
    assert _order(store) == [*order, "e"]


def test_what_does_not_wait_cannot_be_moved(store: Store) -> None:
    _enqueue(store, "a")
    with pytest.raises(ProblemsError) as caught:
        store.write(lambda connection: queue_order.move(connection, "b", "up"))
    assert [problem.code for problem in caught.value.problems] == ["not_queued"]


def test_the_queue_outlives_the_process_and_a_preflight_that_nobody_finished(store: Store) -> None:
    _enqueue(store, "a", "b")
    store.write(lambda connection: run_store.append(connection, "a", EventKind.PREFLIGHT, time=1.0))
    store.close()
    again = Store(store.path)
    assert _order(again) == ["a", "b"]
    again.write(lambda connection: run_store.append(connection, "a", EventKind.WAITING, time=2.0))
    again.write(lambda connection: run_store.append(connection, "b", EventKind.STOP_REQUESTED, time=2.0))
    with again.read() as connection:
        assert run_store.state_of(connection, "a") is RunState.QUEUED
    assert _order(again) == ["a"]
    again.close()
