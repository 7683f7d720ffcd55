"""Curves at several widths: always what the points themselves say, each point once, and no spike is ever lost."""

import math
import sqlite3
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from backend.runs.store import curve_levels, curve_view, metrics
from backend.runs.store.curve_buckets import SERIES, from_bytes
from backend.runs.store.curve_levels import LEVELS
from backend.runs.store.curve_view import Curves
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun

pytestmark = pytest.mark.slow

RUN = "20260101-000000-curves-aaaa"
MILLION = 1_000_000
SPIKE = 777_777


class Killed(Exception):
    """The process ended before the transaction did."""


def row(step: int, **more: float) -> dict:
    return {"step": step, "time": 1.0, "loss": 2.0 + step % 7, "step_s": 0.5, "tokens": 100 + step % 3, **more}


def add(store: Store, steps, attempt: int = 1, *, killed: bool = False, **more: float) -> None:
    def write(connection: sqlite3.Connection) -> None:
        metrics.add_points(connection, RUN, attempt, 0, [row(step, **more) for step in steps])
        if killed:
            raise Killed

    with suppress(Killed):
        store.write(write)


def view(store: Store, first: int = 0, last: int = curve_view.END) -> Curves:
    with store.read() as connection:
        return curve_view.view(connection, RUN, curve_view.state(connection, RUN), first, last)


def stored(store: Store) -> list[tuple]:
    with store.read() as connection:
        rows = connection.execute("SELECT attempt, bits, bucket, data FROM curve_levels ORDER BY attempt, bits, bucket")
        return [(*one[:3], from_bytes([one[3]])) for one in rows.fetchall()]


def recomputed(store: Store) -> list[tuple]:
    """The levels of the same points taken in at once."""

    def write(connection: sqlite3.Connection) -> None:
        curve_levels.add_all_points(connection, RUN)

    store.write(write)
    mine = stored(store)

    def again(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM curve_levels")
        connection.execute("DELETE FROM curve_parts")
        curve_levels.add_all_points(connection, RUN)

    store.write(again)
    return [mine, stored(store)]


def assert_alike(mine: list[tuple], theirs: list[tuple]) -> None:
    assert [one[:3] for one in mine] == [one[:3] for one in theirs]
    exact = [place for place, name in enumerate(SERIES) if not name.startswith("loss_")]
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(one[3][:, exact], other[3][:, exact])
        # The order of additions differs.
        np.testing.assert_allclose(one[3][..., 1], other[3][..., 1], rtol=1e-9)


@pytest.fixture
def store(tmp_path: Path):
    opened = Store(tmp_path / "megaboard.db")
    StoredRun(opened, RUN, now=1.0)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory):
    """A run of a million steps as an older version left it: points, and nothing else."""
    opened = Store(tmp_path_factory.mktemp("long") / "megaboard.db")
    StoredRun(opened, RUN, now=1.0)
    opened.write(
        lambda c: c.execute(
            "INSERT INTO points (run, attempt, rank, step, time, loss, step_s)"
            " WITH RECURSIVE n (step) AS (SELECT 1 UNION ALL SELECT step + 1 FROM n WHERE step < ?)"
            " SELECT ?, 1, 0, step, step, CASE step WHEN ? THEN 40.0 ELSE 1.0 + 0.001 * (step % 97) END, 0.5 FROM n",
            (MILLION, RUN, SPIKE),
        )
    )
    opened.write(lambda c: curve_levels.add_all_points(c, RUN))
    yield opened
    opened.close()


def test_a_single_spike_in_a_million_steps_is_in_every_level_and_view(long_run: Store) -> None:
    rows = [one for one in stored(long_run) if one[2] == SPIKE >> one[1]]
    assert [one[1] for one in rows] == list(LEVELS)
    assert all(one[3][0, SERIES.index("loss"), 2].tolist() == [SPIKE, 40.0] for one in rows)
    half = MILLION // 2
    while half > 100:
        steps, values = view(long_run, SPIKE - half, SPIKE + half)["loss"]
        assert values[steps == SPIKE].tolist() == [40.0]
        assert len(steps) < 4 * 16 * curve_view.LEAST_BUCKETS + 2, "few rows are read however long the run is"
        half //= 4


@pytest.mark.parametrize("last", [4_000, 15_000, 17_000, 100_000, 270_000, MILLION])
def test_a_chart_of_the_levels_shows_the_same_points_as_one_of_all_points(long_run: Store, last: int) -> None:
    from app.monitor.downsample import LIMIT, downsample

    first = max(1, SPIKE - last)
    last = first + last - 1
    with long_run.read() as connection:
        points = connection.cursor()
        points.row_factory = None
        query = "SELECT step, loss FROM points WHERE run = ? AND step BETWEEN ? AND ? ORDER BY step"
        raw = np.array(points.execute(query, (RUN, first, last)).fetchall())
    kept = raw[downsample(raw[:, 0].astype(int), raw[:, 1], LIMIT)]
    steps, values = view(long_run, first, last)["loss"]
    inside = (steps >= first) & (steps <= last)
    thin = downsample(steps[inside], values[inside], LIMIT)
    found = np.column_stack((steps[inside][thin], values[inside][thin]))
    # A bucket at an end of the stretch is cut off in one and whole in the other.
    edge = (last - first) // 100
    inner, expected = (one[(one[:, 0] > first + edge) & (one[:, 0] < last - edge)] for one in (found, kept))
    np.testing.assert_array_equal(inner, expected)
    assert len(inner) > 400


def test_the_levels_stay_when_the_rows_of_the_points_are_dropped(long_run: Store, tmp_path: Path) -> None:
    copy = tmp_path / "megaboard.db"
    with long_run.read() as connection:
        connection.execute("ROLLBACK")
        connection.execute("VACUUM INTO ?", (str(copy),))
        connection.execute("BEGIN")
    opened = Store(copy)
    before = view(opened)
    opened.write(lambda c: c.execute("DELETE FROM points"))
    after = view(opened)
    for name in SERIES:
        np.testing.assert_array_equal(before[name], after[name])
    steps, values = view(opened, SPIKE - 50, SPIKE + 50)["loss"]
    assert values[steps == SPIKE].tolist() == [40.0], "a close look falls back to the narrowest level"
    opened.close()


BATCHES = st.lists(
    st.tuples(
        st.integers(1, 300),
        st.booleans(),
        st.sampled_from([None, math.nan, math.inf, 9.0]),
        st.sampled_from(["on", "on", "again", "back", "attempt"]),
    ),
    min_size=1,
    max_size=10,
)


def points_on_the_curve(store: Store) -> dict[int, float]:
    """Step -> its rate, from the points: a later attempt replaces all from its first step on."""
    with store.read() as connection:
        rows = connection.execute("SELECT attempt, step, tokens / step_s AS rate FROM points ORDER BY attempt, step")
        found: dict[int, float] = {}
        attempt = 0
        for one in rows:
            if one["attempt"] != attempt:
                found = {step: rate for step, rate in found.items() if step < one["step"]}
            attempt = one["attempt"]
            found[one["step"]] = one["rate"]
    return found


@settings(max_examples=25, derandomize=True, phases=[Phase.generate])
@given(BATCHES)
def test_after_any_batches_duplicates_kills_and_attempts_the_levels_are_those_of_the_points(tmp_path_factory, batches):
    opened = Store(tmp_path_factory.mktemp("any") / "megaboard.db")
    StoredRun(opened, RUN, now=1.0)
    attempt, begun, step = 1, 1, 0
    for count, killed, loss, kind in batches:
        if kind == "attempt":
            attempt, step = attempt + 1, step // 2
            begun = step + 1
        if kind == "back":
            step = max(begun, step - 70) - 1
            opened.write(lambda c, at=(attempt, 0, step + 1): metrics.remove_steps(c, RUN, *at))
        first = max(begun, step - 40) if kind == "again" else step + 1
        add(opened, range(first, first + count), attempt, killed=killed, **({} if loss is None else {"loss": loss}))
        step = step if killed else max(step, first + count - 1)
    steps, values = view(opened)["tokens_per_s"]
    assert dict(zip(steps.tolist(), values.tolist(), strict=True)) == points_on_the_curve(opened)
    assert_alike(*recomputed(opened))
    opened.close()


def test_the_first_steps_after_an_emptied_attempt_replace_those_of_earlier_attempts(store: Store) -> None:
    add(store, range(1, 101))
    add(store, range(51, 61), 2)
    store.write(lambda c: metrics.remove_steps(c, RUN, 2, 0, 51))
    with store.read() as connection:
        generation = curve_view.state(connection, RUN).generation
    add(store, range(51, 56), 2)
    assert view(store)["tokens_per_s"][0].tolist() == [*range(1, 56)]
    with store.read() as connection:
        assert curve_view.state(connection, RUN).generation > generation, "the page must read the curves again"


def test_a_transaction_that_is_rolled_back_leaves_no_trace_and_a_duplicate_none_either(store: Store) -> None:
    add(store, range(1, 101))
    before = stored(store)
    add(store, range(101, 300), killed=True)
    add(store, range(1, 101), loss=99.0)
    assert_alike(before, stored(store))
    add(store, range(101, 300))
    assert view(store)["loss"][1].tolist() == [2.0 + step % 7 for step in range(1, 300)]


def test_few_steps_wait_and_are_shown_all_the_same(store: Store) -> None:
    add(store, [1])
    for step in range(2, 60):
        add(store, [step])
    with store.read() as connection:
        assert curve_levels.read_parts(connection, RUN)[0].last_step == 1
    assert view(store)["loss"][0].tolist() == list(range(1, 60))


def test_a_later_attempt_replaces_what_stood_behind_its_first_step_at_every_width(store: Store) -> None:
    add(store, range(1, 20_001), loss=9.0)
    add(store, range(10_001, 20_101), 2, loss=1.0)
    for first, last in ((0, curve_view.END), (9_000, 11_000), (9_990, 10_010)):
        steps, values = view(store, first, last)["loss"]
        assert (np.diff(steps) > 0).all()
        assert (values[steps <= 10_000] == 9.0).all()
        assert (values[steps > 10_000] == 1.0).all()
    assert 10_000 in view(store)["loss"][0], "the last step before the cut"


def test_an_older_database_is_taken_in_by_bounded_transactions_that_can_be_broken_off(store: Store) -> None:
    def as_older_versions_did(connection: sqlite3.Connection) -> None:
        for step in range(1, 1001):
            connection.execute(
                "INSERT INTO points (run, attempt, rank, step, time, loss) VALUES (?, 1, 0, ?, 1, ?)",
                (RUN, step, float(step)),
            )

    store.write(as_older_versions_did)
    with store.read() as connection:
        assert curve_view.state(connection, RUN).is_behind
    assert store.write(lambda c: curve_levels.add_points(c, RUN, limit=300))
    assert view(store)["loss"][0].tolist() == list(range(1, 301))
    with suppress(Killed):
        store.write(lambda c: [curve_levels.add_points(c, RUN, limit=300), _kill()])
    while store.write(lambda c: curve_levels.add_points(c, RUN, limit=300)):
        pass
    assert view(store)["loss"][1].tolist() == [float(step) for step in range(1, 1001)]
    with store.read() as connection:
        assert not curve_view.state(connection, RUN).is_behind


def _kill() -> None:
    raise Killed


def test_the_smoothed_loss_begins_at_the_first_value_and_follows_the_losses_before(store: Store) -> None:
    add(store, [1], loss=7.0)
    assert view(store)["loss_smooth"][1].tolist() == [7.0]
    add(store, range(2, 200), loss=3.0)
    add(store, [200], 2, loss=8.0)
    smooth = view(store)["loss_smooth"][1]
    assert smooth[1] == pytest.approx((0.8 * 7 + 3) / 1.8)
    assert smooth[-1] == pytest.approx(3 + 0.2 * 5), "of the losses before, of an earlier attempt too"


def test_what_is_no_step_breaks_nothing(store: Store) -> None:
    add(store, [-5, 1, 1 << 62, 3])
    store.write(lambda c: curve_levels.add_all_points(c, RUN))
    assert {1, 3} < set(view(store)["loss"][0].tolist())
