"""Lines of steps: every number that a trainer logs is in a line, and no line comes before that of its step."""

import io
import json
import math
from typing import Any

import pytest

from backend.node.training.step_lines import MOST_NAMES, StepLines


class Written:
    def __init__(self, rank: int = 0) -> None:
        self.file = io.StringIO()
        self.lines = StepLines(self.file, rank)

    def step(self, step: int, *, is_logged: bool = True) -> None:
        self.lines.begin_step()
        self.lines.end_step({"step": step, "time": 1.0}, is_logged=is_logged)

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.getvalue().splitlines()]


def test_what_is_logged_with_a_loss_is_in_the_line_of_the_step() -> None:
    written = Written()
    written.step(1)
    written.lines.log(1, {"loss": 2.0, "learning_rate": 0.1, "rewards/chosen": 0.5, "epoch": 0.1, "text": "no"})
    (row,) = written.rows()
    assert (row["loss"], row["learning_rate"], row["metrics"]) == (2.0, 0.1, {"rewards/chosen": 0.5})
    assert "epoch" not in row["metrics"]


def test_an_evaluation_after_the_line_has_a_line_of_its_own_with_the_same_step() -> None:
    written = Written()
    written.step(1)
    written.lines.log(1, {"loss": 2.0})
    written.lines.log(1, {"eval_loss": 1.5})
    written.step(2, is_logged=False)
    written.lines.log(2, {"eval_loss": 1.25})
    rows = [(row["step"], row.get("loss"), row.get("metrics")) for row in written.rows()]
    assert rows == [(1, 2.0, None), (1, None, {"eval_loss": 1.5}), (2, None, None), (2, None, {"eval_loss": 1.25})]


def test_what_a_callback_logs_inside_a_step_waits_for_the_line_of_that_step() -> None:
    """An older server keeps the first line of a step."""
    written = Written()
    written.lines.begin_step()
    written.lines.log(1, {"mine": 7})
    assert written.rows() == []
    written.lines.end_step({"step": 1, "time": 1.0}, is_logged=True)
    written.lines.log(1, {"loss": 2.0, "other": 3})
    (row,) = written.rows()
    assert (row["loss"], row["metrics"]) == (2.0, {"mine": 7.0, "other": 3.0})


class Tensor:
    """What torch and numpy have: float() works for one element only."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __float__(self) -> float:
        if len(self.values) != 1:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return self.values[0]


@pytest.mark.parametrize("value", [None, True, "1.0", b"1", [1.0], {"a": 1}, Tensor(1, 2), object(), 10**400])
def test_what_is_not_one_number_is_left_out(value: object) -> None:
    written = Written()
    written.step(1)
    written.lines.log(1, {"loss": 2.0, "strange": value, "good": Tensor(4.0), "bad": math.nan})
    (row,) = written.rows()
    assert row["metrics"]["good"] == 4.0
    assert math.isnan(row["metrics"]["bad"])
    assert row["metrics"].keys() == {"good", "bad"}


def test_only_rank_0_writes_metrics_and_a_line_has_a_limit() -> None:
    other, first = Written(rank=1), Written()
    for written in (other, first):
        written.step(1)
        written.lines.log(1, {"loss": 1.0, **{f"name{number}": number for number in range(2 * MOST_NAMES)}})
    assert "metrics" not in other.rows()[0]
    assert len(first.rows()[0]["metrics"]) == MOST_NAMES
