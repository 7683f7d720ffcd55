"""Alerts on metrics by the rules of the operator (store/alert_rules.py)."""

import math
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from backend.runs.states import EventKind
from backend.runs.store import alert_rules, run_store
from backend.runs.store.alert_rules import Rule, StoredRule

LEAST_BEFORE = 5
"""Values that a rise is compared with, at least."""
_HISTORY = 3
"""The history that is read has as many values as the rule's count, times this. Older ones decide nothing but the best
value."""


def of_metrics(
    connection: sqlite3.Connection, run: str, attempt: int, logged: Collection[str]
) -> Iterator[tuple[EventKind, Mapping[str, Any]]]:
    """Yield the alerts of the rules on metrics that were just logged. The caller records each before the next.

    A rule alerts again only after its condition was false at a later value.
    """
    for stored in alert_rules.rules_of(connection, run):
        if stored.rule.metric in logged and (detail := _alert(connection, run, attempt, stored)):
            yield EventKind.METRIC_ALERT, detail


def holds(rule: Rule, values: Sequence[float]) -> bool:
    """Return whether the condition of a rule is true at the last of these finite values."""
    if not values:
        return False
    newest = values[-1]
    if rule.condition == "above":
        return newest > rule.limit
    if rule.condition == "below":
        return newest < rule.limit
    if rule.condition == "rise":
        before = values[-1 - rule.count : -1]
        usual = median(before) if len(before) >= min(LEAST_BEFORE, rule.count) else math.inf
        return newest - usual > abs(usual) * rule.limit / 100
    best = min if rule.better == "lower" else max
    before, after = values[: -rule.count], values[-rule.count :]
    return bool(before) and len(after) == rule.count and best([best(before), *after]) == best(before)


def _alert(connection: sqlite3.Connection, run: str, attempt: int, stored: StoredRule) -> Mapping[str, Any] | None:
    rule = stored.rule
    # "no improvement" compares with all values before; evaluations are few.
    count = 5000 if rule.condition == "no_improvement" else _HISTORY * (rule.count + LEAST_BEFORE)
    values = alert_rules.newest_values(connection, run, attempt, rule.metric, count=count)
    finite = [(step, value) for step, value in values if math.isfinite(value)]
    numbers = [value for _, value in finite]
    if not holds(rule, numbers):
        return None
    alerted = [
        event.detail["step"]
        for event in run_store.events(connection, run)
        if event.kind is EventKind.METRIC_ALERT and event.attempt == attempt and event.detail.get("rule") == stored.id
    ]
    if alerted:
        later = [index for index, (step, _) in enumerate(finite) if step > alerted[-1]]
        if all(holds(rule, numbers[: index + 1]) for index in later):
            return None
    step, value = finite[-1]
    return {
        **{"rule": stored.id, "metric": rule.metric, "condition": rule.condition, "step": step, "value": value},
        **{"limit": rule.limit, "count": rule.count},
    }
