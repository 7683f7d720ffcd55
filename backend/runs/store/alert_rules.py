"""Rules of alerts on metrics, as the operator wrote them: for one run, or for all runs."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from backend.job.problems import Problem, ProblemsError
from backend.runs.store import logged_metrics, metrics

Condition = Literal["above", "below", "rise", "no_improvement"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
LOGGED = ("loss", "grad_norm", "learning_rate", "step_s")
"""Columns of the table `points` that a rule may watch."""
MOST_RULES, MOST_COUNT = 100, 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """When an alert is due. ProblemsError(bad_rule) names the wrong field."""

    metric: str
    condition: Condition
    limit: float = 0.0
    """above, below: the value. rise: percent above the median of the values before. Unused for no_improvement."""
    count: int = 5
    """no_improvement: number of newest values without a better one. rise: number of values before."""
    better: Literal["lower", "higher"] = "lower"
    """no_improvement: which direction is better."""

    def __post_init__(self) -> None:
        is_number = type(self.limit) in (int, float) and abs(self.limit) < 1e300
        wrong = {
            "metric": not (isinstance(self.metric, str) and 0 < len(self.metric) <= 100 and self.metric.isprintable()),
            "condition": self.condition not in CONDITIONS,
            "limit": not is_number or (self.condition == "rise" and self.limit <= 0),
            "count": type(self.count) is not int or not 1 <= self.count <= MOST_COUNT,
            "better": self.better not in ("lower", "higher"),
        }
        for name, is_wrong in wrong.items():
            if is_wrong:
                raise ProblemsError([Problem(code="bad_rule", values={"name": name, "most": MOST_COUNT})])


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRule:
    """A rule in the store."""

    id: int
    run: str | None
    """None: for all runs."""
    rule: Rule


def rules_of(connection: sqlite3.Connection, run: str) -> list[StoredRule]:
    """Return the rules that hold for a run, oldest first. An unreadable one is left out."""
    rows = connection.execute("SELECT * FROM alert_rules WHERE run IS NULL OR run = ? ORDER BY id", (run,))
    stored = []
    for row in rows:
        try:
            stored.append(StoredRule(id=row["id"], run=row["run"], rule=Rule(**json.loads(row["rule"]))))
        except (TypeError, ValueError, ProblemsError):
            continue  # a newer version wrote it
    return stored


def add(connection: sqlite3.Connection, run: str | None, rule: Rule, now: float) -> None:
    """Add a rule, unless the same one is there. Raises ProblemsError(too_many_rules)."""
    text = json.dumps(asdict(rule), sort_keys=True)
    if connection.execute("SELECT 1 FROM alert_rules WHERE run IS ? AND rule = ?", (run, text)).fetchone():
        return
    if connection.execute("SELECT count(*) FROM alert_rules").fetchone()[0] >= MOST_RULES:
        raise ProblemsError([Problem(code="too_many_rules", values={"most": MOST_RULES})])
    connection.execute("INSERT INTO alert_rules (run, rule, created) VALUES (?, ?, ?)", (run, text, now))


def remove(connection: sqlite3.Connection, rule: int) -> None:
    """Remove a rule. Its past alerts stay."""
    connection.execute("DELETE FROM alert_rules WHERE id = ?", (rule,))


def rule_of(values: Mapping[str, Any]) -> Rule:
    """Return a rule from untrusted values. Raises ProblemsError(bad_rule)."""
    known = {name: values[name] for name in Rule.__dataclass_fields__ if name in values}
    return Rule(**{"metric": "", "condition": "", **known})


def newest_values(
    connection: sqlite3.Connection, run: str, attempt: int, metric: str, *, count: int
) -> Sequence[tuple[int, float]]:
    """Return (step, value) of the newest values of a metric in an attempt, oldest first."""
    if metric in LOGGED:
        return metrics.newest_steps_of(connection, run, attempt, metric, count=count)
    return logged_metrics.newest(connection, run, attempt, metric, count=count)
