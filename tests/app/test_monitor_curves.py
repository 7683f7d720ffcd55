"""What a tab has and what it lacks: curves grow by increments, and a tab that lost the thread gets the whole."""

import math

from app.monitor.curves import Curves
from app.monitor.downsample import LIMIT
from backend.jobs.records import Point

READERS = {"loss": lambda point: point.loss, "step_s": lambda point: point.step_s}


def _points(first: int, last: int, *, loss=None, attempt: int = 1, seq: int | None = None) -> list[Point]:
    begin = first if seq is None else seq
    return [
        Point(seq=begin + i, attempt=attempt, rank=0, step=step, time=0.0, loss=1.0 / step if loss is None else loss)
        for i, step in enumerate(range(first, last + 1))
    ]


def _curves(*batches: list[Point]) -> Curves:
    curves = Curves(READERS)
    for batch in batches:
        curves.add(batch)
    return curves


def test_a_new_tab_gets_everything_and_then_only_what_is_new():
    curves = _curves(_points(1, 10))
    whole = curves.to_json(None, None)
    assert whole["series"]["loss"]["x"] == list(range(1, 11))
    assert "from" not in whole
    curves.add(_points(11, 12))
    more = curves.to_json(whole["generation"], whole["seq"])
    assert more["from"] == 10
    assert more["series"]["loss"]["x"] == [11, 12]
    assert curves.to_json(more["generation"], more["seq"])["series"] == {}


def test_a_series_that_the_engine_does_not_tell_stays_empty():
    assert _curves(_points(1, 3)).to_json(None, None)["series"]["step_s"] == {"x": [], "y": []}


def test_a_tab_that_is_far_behind_or_from_another_server_gets_the_whole():
    curves = _curves(_points(1, 5 * LIMIT))
    for generation, seq in ((0, 1), (1, 4999), (0, 999_999), (None, 4999), (0, None)):
        whole = curves.to_json(generation, seq)
        assert "from" not in whole
        assert len(whole["series"]["loss"]["x"]) <= LIMIT
    assert "from" in curves.to_json(0, 5 * LIMIT - 10)


def test_a_later_attempt_replaces_the_steps_it_goes_over_again():
    curves = _curves(_points(1, 10, loss=9.0))
    before = curves.to_json(None, None)
    curves.add(_points(6, 7, loss=1.0, attempt=2, seq=11))
    after = curves.to_json(before["generation"], before["seq"])
    assert "from" not in after
    assert after["series"]["loss"]["x"] == [1, 2, 3, 4, 5, 6, 7]
    assert after["series"]["loss"]["y"][-2:] == [1.0, 1.0]
    assert after["series"]["loss_smooth"]["x"] == [1, 2, 3, 4, 5, 6, 7]


def test_a_loss_that_is_not_finite_is_marked_and_breaks_nothing():
    curves = _curves(_points(1, 3, loss=2.0), _points(4, 5, loss=math.nan), _points(6, 6, loss=2.0))
    series = curves.to_json(None, None)["series"]
    assert series["loss"]["x"] == [1, 2, 3, 6]
    assert series["loss_bad"] == {"x": [4, 5], "y": [2.0, 2.0]}
    assert series["loss_smooth"]["y"] == [2.0, 2.0, 2.0, 2.0]


def test_the_smoothed_loss_begins_at_the_first_value():
    assert _curves(_points(1, 1, loss=7.0)).to_json(None, None)["series"]["loss_smooth"]["y"] == [7.0]
