"""What a tab has and what it lacks: curves grow by increments, and a tab that lost the thread gets the whole."""

import math

import pytest

from app.monitor import curves
from app.monitor.downsample import LIMIT
from backend.runs.database import Database
from backend.runs.store import metrics
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun

RUN = "20260101-000000-curves-aaaa"


class Monitor:
    """A store with one run, and what a tab is answered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        StoredRun(store, RUN, now=1.0)

    def steps(self, first: int, last: int, *, attempt: int = 1, loss: float | None = None) -> None:
        rows = [{"step": n, "time": 0.0, "loss": 1.0 / n if loss is None else loss} for n in range(first, last + 1)]
        self.store.write(lambda connection: metrics.add_points(connection, RUN, attempt, 0, rows))

    def ask(self, generation: int | None = None, seq: int | None = None) -> dict:
        with Database(self.store).read() as reader:
            return curves.part(reader, RUN, generation, seq)

    def detail(self, first: int, last: int) -> dict:
        with Database(self.store).read() as reader:
            return curves.detail(reader, RUN, first, last)


@pytest.fixture
def monitor(tmp_path):
    store = Store(tmp_path / "megaboard.db")
    yield Monitor(store)
    store.close()


def test_a_new_tab_gets_everything_and_then_only_what_is_new(monitor):
    monitor.steps(1, 10)
    whole = monitor.ask()
    assert whole["series"]["loss"]["x"] == list(range(1, 11))
    assert "from" not in whole
    monitor.steps(11, 12)
    more = monitor.ask(whole["generation"], whole["seq"])
    assert more["from"] == whole["seq"]
    assert more["series"]["loss"]["x"] == [11, 12]
    assert monitor.ask(more["generation"], more["seq"])["series"] == {}


def test_increments_are_the_same_whether_the_steps_wait_or_have_been_taken_in(monitor):
    monitor.steps(1, 1)
    has, shown = monitor.ask(), {"loss": [], "loss_smooth": []}
    for first in range(2, 300, 7):
        monitor.steps(first, first + 6)
        has = monitor.ask(has["generation"], has["seq"])
        assert "from" in has
        for name, values in shown.items():
            values += has["series"][name]["y"]
    whole = monitor.ask()["series"]
    assert shown == {name: whole[name]["y"][1:] for name in shown}


def test_a_series_that_the_engine_does_not_tell_stays_empty(monitor):
    monitor.steps(1, 3)
    assert monitor.ask()["series"]["step_s"] == {"x": [], "y": []}


def test_a_tab_that_is_far_behind_or_from_another_server_gets_the_whole(monitor):
    monitor.steps(1, 5 * LIMIT)
    newest = monitor.ask()["seq"]
    for generation, seq in ((0, 1), (1, newest - 1), (0, 999_999), (None, newest - 1), (0, None)):
        whole = monitor.ask(generation, seq)
        assert "from" not in whole
        assert len(whole["series"]["loss"]["x"]) <= LIMIT
    assert "from" in monitor.ask(0, newest - 10)


def test_a_later_attempt_replaces_the_steps_it_goes_over_again(monitor):
    monitor.steps(1, 10, loss=9.0)
    before = monitor.ask()
    monitor.steps(6, 7, attempt=2, loss=1.0)
    after = monitor.ask(before["generation"], before["seq"])
    assert "from" not in after
    assert after["series"]["loss"]["x"] == [1, 2, 3, 4, 5, 6, 7]
    assert after["series"]["loss"]["y"][-2:] == [1.0, 1.0]
    assert after["series"]["loss_smooth"]["x"] == [1, 2, 3, 4, 5, 6, 7]


def test_steps_that_were_taken_back_bring_the_whole_though_they_had_not_been_taken_in(monitor):
    monitor.steps(1, 1)
    monitor.steps(2, 10)
    before = monitor.ask()
    monitor.store.write(lambda connection: metrics.remove_steps(connection, RUN, 1, 0, 5))
    monitor.steps(5, 6, loss=3.0)
    after = monitor.ask(before["generation"], before["seq"])
    assert "from" not in after
    assert after["series"]["loss"]["x"] == [1, 2, 3, 4, 5, 6]


def test_a_loss_that_is_not_finite_is_marked_and_breaks_nothing(monitor):
    monitor.steps(1, 3, loss=2.0)
    monitor.steps(4, 5, loss=math.nan)
    monitor.steps(6, 6, loss=2.0)
    told = monitor.ask()["series"]
    assert told["loss"]["x"] == [1, 2, 3, 6]
    assert told["loss_bad"] == {"x": [4, 5], "y": [2.0, 2.0]}
    assert told["loss_smooth"]["y"] == [2.0, 2.0, 2.0, 2.0]


def test_a_stretch_in_detail_has_every_step_that_the_whole_leaves_out(monitor):
    monitor.steps(1, 20_000)
    whole = monitor.ask()["series"]["loss"]["x"]
    assert sum(1000 <= step <= 1400 for step in whole) < 100
    assert monitor.detail(1000, 1400)["series"]["loss"]["x"] == list(range(1000, 1401))
    assert len(monitor.detail(1000, 15_000)["series"]["loss"]["x"]) <= LIMIT
