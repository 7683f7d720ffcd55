"""Numbers that a training logs under names of its own: every one is stored once, and shown from the store."""

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from backend.runs.states import EventKind
from backend.runs.store import logged_metrics, metric_view, metrics, sizes
from backend.runs.store.deletion import run_tables
from backend.runs.store.metric_view import Metric
from backend.runs.store.store import Store
from tests.runs.conftest import RUN, Gang
from tools.stored_runs import StoredRun

pytestmark = pytest.mark.slow

LOGGED = "20260101-000000-logged-aaaa"


@pytest.fixture
def logged(tmp_path: Path):
    opened = Store(tmp_path / "megaboard.db")
    StoredRun(opened, LOGGED, now=1.0)
    yield opened
    opened.close()


def add(store: Store, steps: Any, attempt: int = 1, name: str = "eval_loss", **more: float) -> None:
    rows = [{"step": step, "time": 1.0, "metrics": {name: more.get("value", value_at(step))}} for step in steps]
    store.write(lambda c: logged_metrics.add(c, LOGGED, attempt, 0, rows))


def value_at(step: int) -> float:
    return 2.0 + step % 7


def known(store: Store) -> dict[str, Metric]:
    with store.read() as connection:
        return metric_view.metrics_of(connection, LOGGED)


def view(store: Store, first: int = 0, last: int = metric_view.END, name: str = "eval_loss") -> tuple[Any, Any]:
    with store.read() as connection:
        metric = metric_view.metrics_of(connection, LOGGED)[name]
        steps, values = metric_view.view(connection, metric, first, last)
    return steps.tolist(), values.tolist()


def extremes(store: Store) -> tuple[float, int, float, int]:
    with store.read() as connection:
        found = metric_view.extremes(connection, metric_view.metrics_of(connection, LOGGED)["eval_loss"])
    assert found is not None
    return found.lowest, found.lowest_step, found.highest, found.highest_step


def line(step: int, **more: Any) -> dict[str, Any]:
    return {"protocol": 1, "step": step, "time": 1000.0 + step, **more}


def test_what_a_node_logs_reaches_the_store_and_a_line_of_only_metrics_is_no_step(gang: Gang) -> None:
    gang.write(0, "steps.rank0.jsonl", line(1, loss=2.0, step_s=1.0, metrics={"rewards/chosen": 0.5}))
    gang.write(0, "steps.rank0.jsonl", line(1, metrics={"eval_loss": 1.5, "中文/指标": 7}), line(2, loss=1.0))
    gang.write(0, "steps.rank0.jsonl", line(9, metrics={"mine": math.nan}))
    gang.collector().poll(gang.nodes[0])
    assert [(point.step, point.loss) for point in gang.points()] == [(1, 2.0), (2, 1.0)]
    with gang.store.read() as connection:
        rows = connection.execute("SELECT run, attempt, rank, step, name, value FROM metrics ORDER BY name").fetchall()
    assert [tuple(row) for row in rows] == [
        (RUN, 1, 0, 1, "eval_loss", 1.5),
        (RUN, 1, 0, 9, "mine", "nan"),
        (RUN, 1, 0, 1, "rewards/chosen", 0.5),
        (RUN, 1, 0, 1, "中文/指标", 7.0),
    ]


@pytest.mark.parametrize(
    "name", ["", " ", "a\n", "a\x1b[31m", "=cmd()", "-1", "@a", "<b>", "\u202eabc", "x" * 101, "a\u2028b"]
)
def test_a_hostile_name_is_left_out_and_reported_and_its_neighbours_stay(gang: Gang, name: str) -> None:
    gang.write(0, "steps.rank0.jsonl", line(1, loss=2.0, metrics={name: 1.0, "good": 3.0}))
    gang.collector().poll(gang.nodes[0])
    with gang.store.read() as connection:
        assert [row["name"] for row in connection.execute("SELECT name FROM metrics")] == ["good"]
    assert [point.loss for point in gang.points()] == [2.0]
    assert EventKind.BAD_RECORDS in gang.kinds()


def test_the_number_of_names_of_a_run_is_limited_and_the_first_one_without_room_is_named(gang: Gang) -> None:
    collector = gang.collector()
    for step in range(1, 5):
        names = {f"n{step}.{number}": 1.0 for number in range(200)}
        gang.write(0, "steps.rank0.jsonl", line(step, loss=1.0, metrics=names))
        collector.poll(gang.nodes[0])
    with gang.store.read() as connection:
        assert len(metric_view.metrics_of(connection, RUN)) == logged_metrics.MOST_NAMES
    (event,) = [event for event in gang.events() if event.kind is EventKind.METRIC_NAMES_FULL]
    assert event.detail == {"metric": "n3.100", "most": logged_metrics.MOST_NAMES}


def test_a_batch_whose_transaction_fails_is_stored_once_by_the_next_poll(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang.write(0, "steps.rank0.jsonl", *(line(step, loss=1.0, metrics={"mine": step}) for step in range(1, 200)))
    collector = gang.collector()
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "add_points", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            collector.poll(gang.nodes[0])
    for _ in range(2):
        gang.collector().poll(gang.nodes[0])
    with gang.store.read() as connection:
        assert connection.execute("SELECT count(*) FROM metrics").fetchone()[0] == 199
        assert metric_view.metrics_of(connection, RUN)["mine"].count == 199


def test_a_later_attempt_replaces_the_values_from_its_first_step_on(logged: Store) -> None:
    run = StoredRun(logged, "20260101-000000-other-bbbb", now=1.0)
    add(logged, range(10, 101, 10))
    assert view(logged)[0] == list(range(10, 101, 10))
    before = known(logged)["eval_loss"].version
    row = {"step": 61, "time": 2.0, "loss": 1.0}
    columns = "(run, attempt, created, master_address, master_port, rendered)"
    statement = f"INSERT INTO attempts {columns} VALUES (?, 2, 1, '', 0, '{{}}')"
    logged.write(lambda c: c.execute(statement, (LOGGED,)))
    logged.write(lambda c: metrics.add_points(c, LOGGED, 2, 0, [row]))
    assert view(logged)[0] == [10, 20, 30, 40, 50, 60]
    assert known(logged)["eval_loss"].version != before
    assert extremes(logged)[2:] == (8.0, 20)
    with logged.read() as connection:
        # The list of runs counts no replaced value: the lowest one was at step 70 or later.
        low, high = extremes(logged)[0], extremes(logged)[2]
        assert metric_view.summaries(connection, "eval_loss")[LOGGED] == (6.0, low, high)
    add(logged, [70], attempt=2, value=0.5)
    assert view(logged) == ([10, 20, 30, 40, 50, 60, 70], [5.0, 8.0, 4.0, 7.0, 3.0, 6.0, 0.5])
    assert extremes(logged)[:2] == (0.5, 70)
    with logged.read() as connection:
        assert metric_view.summaries(connection, "eval_loss") == {LOGGED: (0.5, 0.5, 8.0)}
    assert run.id not in {metric.run for metric in known(logged).values()}


def test_a_spike_in_100_000_values_is_in_every_view_and_few_rows_are_read(logged: Store) -> None:
    for begin in range(1, 100_001, 20_000):
        add(logged, range(begin, begin + 20_000))
    add(logged, [100_001], value=99.0)
    add(logged, range(100_002, 100_010))
    for first, last in ((0, metric_view.END), (50_000, 100_005), (99_990, 100_003)):
        steps, values = view(logged, first, last)
        assert values[steps.index(100_001)] == 99.0
        assert len(steps) < 4 * 16 * 512
    assert view(logged, 100, 110) == (list(range(100, 111)), [value_at(step) for step in range(100, 111)])
    assert extremes(logged)[2:] == (99.0, 100_001)


@settings(max_examples=40, derandomize=True, phases=(Phase.generate,))
@given(batches=st.lists(st.lists(st.integers(0, 9000), min_size=1, max_size=150), min_size=1, max_size=8))
def test_in_whatever_order_values_arrive_the_levels_have_each_once(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]]
) -> None:
    store = Store(tmp_path_factory.mktemp("any") / "megaboard.db")
    StoredRun(store, LOGGED, now=1.0)
    for steps in batches:
        add(store, steps)
    all_steps = sorted({step for steps in batches for step in steps})
    assert view(store) == (all_steps, [value_at(step) for step in all_steps])
    with store.read() as connection:
        metric = metric_view.metrics_of(connection, LOGGED)["eval_loss"]
        (segment,) = metric.segments
        for level in (1, 2, 3):
            steps, values = metric_view._read(connection, metric, segment, 0, 9000, level, 0)
            assert set(steps.tolist()) <= set(all_steps)
            assert (values.min(), values.max()) == (min(map(value_at, all_steps)), max(map(value_at, all_steps)))
            assert [int(steps.min()), int(steps.max())] == [all_steps[0], all_steps[-1]]
    assert metric.count == len(all_steps)
    store.close()


def test_removed_steps_are_in_no_view_and_the_summary_is_that_of_the_rest(logged: Store) -> None:
    add(logged, range(1, 30_000))
    add(logged, [30_000], value=50.0)
    logged.write(lambda c: logged_metrics.remove_steps(c, LOGGED, 1, 0, 20_001))
    metric = known(logged)["eval_loss"]
    assert (metric.count, metric.last_step, metric.last) == (20_000, 20_000, value_at(20_000))
    assert extremes(logged)[2] == 8.0
    steps, _ = view(logged)
    assert max(steps) == 20_000
    add(logged, range(20_001, 20_200))
    assert max(view(logged)[0]) == 20_199
    logged.write(lambda c: logged_metrics.remove_steps(c, LOGGED, 1, 0, 0))
    assert known(logged) == {}


def test_values_that_are_not_finite_are_stored_and_leave_the_extremes_alone(logged: Store) -> None:
    for step, value in enumerate((1.0, math.inf, -math.inf, math.nan), 1):
        add(logged, [step], value=value)
    assert view(logged) == ([1], [1.0])
    assert extremes(logged) == (1.0, 1, 1.0, 1)
    assert math.isnan(known(logged)["eval_loss"].last)


def test_deletion_archive_and_sizes_know_the_tables(logged: Store, tmp_path: Path) -> None:
    add(logged, range(1, 1000))
    with logged.read() as connection:
        assert {"metrics", "metric_series", "metric_levels"} <= set(run_tables(connection))
        size = sizes.run_size(connection, tmp_path, LOGGED, proofs_since=0.0)
    assert size.kinds["curves"] > 999 * 40
    assert json.dumps(size.kinds)


def test_a_reader_with_the_same_version_gets_only_the_values_after_its_own(logged: Store) -> None:
    add(logged, range(1, 100))
    version = known(logged)["eval_loss"].version
    add(logged, range(100, 105))
    metric = known(logged)["eval_loss"]
    assert metric.version == version

    def news(connection: sqlite3.Connection) -> Any:
        return metric_view.news(connection, metric, 99)[0]

    with logged.read() as connection:
        np.testing.assert_array_equal(news(connection), np.arange(100, 105))
