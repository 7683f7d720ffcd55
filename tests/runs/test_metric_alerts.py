"""Alerts on metrics by rule, and of a training that learns nothing."""

from typing import Any

import pytest

from backend.job.problems import ProblemsError
from backend.runs.diagnosis.metric_alerts import holds
from backend.runs.states import EventKind
from backend.runs.store import alert_rules
from backend.runs.store.alert_rules import MOST_RULES, Rule, rule_of
from tests.runs.conftest import RUN, Gang


def log(gang: Gang, step: int, metrics: dict[str, float] | None = None, **more: Any) -> None:
    gang.write(0, "steps.rank0.jsonl", {"step": step, "time": float(step), "metrics": metrics or {}, **more})
    gang.collector().poll(gang.nodes[0])


def add(gang: Gang, run: str | None = RUN, **values: Any) -> None:
    gang.store.write(lambda c: alert_rules.add(c, run, rule_of({"metric": "eval_loss", **values}), 1.0))


def alerted(gang: Gang) -> list[tuple[str, int, float]]:
    events = [event.detail for event in gang.events() if event.kind is EventKind.METRIC_ALERT]
    return [(detail["condition"], detail["step"], detail["value"]) for detail in events]


def test_a_threshold_alerts_once_and_again_after_it_was_false(gang: Gang) -> None:
    add(gang, condition="above", limit=2.0)
    for step, value in enumerate((1.0, 3.0, 4.0, 1.0, 5.0), 1):
        log(gang, step, {"eval_loss": value, "other": 9.0})
    assert alerted(gang) == [("above", 2, 3.0), ("above", 5, 5.0)]


def test_a_rule_watches_the_loss_itself_and_other_runs_rules_do_not_count(gang: Gang) -> None:
    add(gang, run=None, metric="loss", condition="below", limit=0.5)
    add(gang, run="20260101-000000-other-bbbb", metric="loss", condition="above", limit=0.0)
    log(gang, 1, loss=0.6)
    log(gang, 2, loss=0.4)
    assert alerted(gang) == [("below", 2, 0.4)]


def test_no_improvement_over_n_evaluations_alerts_at_the_nth(gang: Gang) -> None:
    add(gang, condition="no_improvement", count=3)
    for number, value in enumerate((3.0, 2.0, 2.5, 2.1, 2.0, 2.2), 1):
        log(gang, 10 * number, {"eval_loss": value})
    assert alerted(gang) == [("no_improvement", 50, 2.0)]


def test_a_rule_that_was_added_while_its_condition_is_true_alerts_at_the_next_value(gang: Gang) -> None:
    log(gang, 1, {"eval_loss": 9.0})
    add(gang, condition="above", limit=2.0)
    log(gang, 2, {"eval_loss": 9.0})
    log(gang, 3, {"eval_loss": 9.0})
    assert alerted(gang) == [("above", 2, 9.0)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0] * 5 + [1.6], True),
        ([1.0] * 5 + [1.4], False),
        ([1.0, 9.0], False),
        ([-2.0] * 5 + [-0.9], True),
        ([], False),
    ],
)
def test_a_rise_is_a_share_of_the_median_before(values: list[float], expected: bool) -> None:
    assert holds(Rule(metric="x", condition="rise", limit=50, count=5), values) is expected


def test_for_a_reward_higher_is_better() -> None:
    rule = Rule(metric="reward", condition="no_improvement", count=2, better="higher")
    assert holds(rule, [1.0, 0.9, 1.0])
    assert not holds(rule, [1.0, 0.9, 1.1])


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"condition": "never"}, "condition"),
        ({"condition": "above", "limit": "3"}, "limit"),
        ({"condition": "above", "limit": float("nan")}, "limit"),
        ({"condition": "rise", "limit": 0}, "limit"),
        ({"condition": "no_improvement", "count": 0}, "count"),
        ({"condition": "no_improvement", "count": True}, "count"),
        ({"condition": "above", "metric": "a\nb"}, "metric"),
        ({"condition": "above", "metric": ["x"]}, "metric"),
        ({"condition": ["above"]}, "condition"),
        ({"condition": "no_improvement", "better": "sideways"}, "better"),
    ],
)
def test_a_wrong_rule_is_refused_by_its_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ProblemsError) as error:
        rule_of({"metric": "eval_loss", **values})
    assert error.value.problems[0].values["name"] == field


def test_the_number_of_rules_is_limited_and_the_same_rule_is_there_once(gang: Gang) -> None:
    for number in range(MOST_RULES):
        add(gang, condition="above", limit=number)
        add(gang, condition="above", limit=number)
    with pytest.raises(ProblemsError, match="too_many_rules"):
        add(gang, condition="above", limit=-1)


def test_a_loss_of_exactly_0_and_labels_that_are_all_masked_are_alerts_of_their_own(gang: Gang) -> None:
    log(gang, 1, loss=0.0, masked_rows=[32, 32])
    log(gang, 2, loss=0.0)
    kinds = [event.kind for event in gang.events()]
    assert (kinds.count(EventKind.LABELS_MASKED), kinds.count(EventKind.LOSS_ZERO)) == (1, 1)


def test_data_with_some_trained_labels_and_a_small_loss_are_no_alert(gang: Gang) -> None:
    log(gang, 1, loss=1e-12, masked_rows=[31, 32])
    assert not {EventKind.LABELS_MASKED, EventKind.LOSS_ZERO} & {event.kind for event in gang.events()}
