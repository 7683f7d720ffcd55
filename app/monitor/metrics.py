"""Logged metrics of a run for a browser: their names, and the values that the browser does not have yet."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.monitor.downsample import LIMIT, downsample
from app.text import t
from backend.runs.api import CLOSED, GROUPS, Described, Metric, describe
from backend.runs.database import Reader

Have = Mapping[str, tuple[int, int]]
"""Name -> version and last step of the values that a browser has."""


def names(metrics: Mapping[str, Metric], lang: str) -> list[dict[str, Any]]:
    """Return the names of a run by group. A group has the known names first."""
    return [_name(described, lang) for described in ordered(metrics)]


def ordered(names: Sequence[str] | Mapping[str, Any]) -> list[Described]:
    """Return names in the order of the page: known groups, then the others; in a group, the known names first."""
    return sorted(map(describe, names), key=lambda one: one.place)


def _name(described: Described, lang: str) -> dict[str, Any]:
    is_known = described.group in GROUPS
    return {
        "name": described.name,
        "title": title(described, lang),
        "unit": t(lang, f"monitor.metrics.unit.{described.unit}") if described.unit else "",
        "group": described.group,
        "group_title": t(lang, f"monitor.metrics.group.{described.group}") if is_known else f"{described.group}/",
        "closed": described.group in CLOSED,
        "better": described.better,
    }


def title(described: Described, lang: str) -> str:
    """Return the words for a name; an unknown name stays as it was logged."""
    if described.key is None:
        return described.name
    words = t(lang, f"monitor.metric.{described.key}")
    if not described.is_eval:
        return words
    key = "monitor.metrics.eval_of" if described.data else "monitor.metrics.eval"
    return t(lang, key, words=words, data=described.data)


def values(reader: Reader, metric: Metric, version: int, last: int) -> dict[str, Any]:
    """Return the values of a metric that a browser lacks. `from` is set if they follow those it has.

    `version` and `last`: version and last step of the values that the browser has.
    """
    head: dict[str, Any] = {"version": metric.version, "last": metric.last_step}
    if version == metric.version and 0 <= last < metric.last_step:
        steps, numbers = reader.metric_news(metric, last)
        if len(steps) <= LIMIT // 2:
            return {**head, "from": last, **_thinned(steps, numbers)}
    return {**head, **_thinned(*reader.metric_values(metric))}


def detail(reader: Reader, metric: Metric, first: int, last: int) -> dict[str, Any]:
    """Return the values of a metric for the steps `first` to `last`, with as many points as a whole curve has."""
    steps, numbers = reader.metric_values(metric, first, last)
    begin, end = steps.searchsorted(first), steps.searchsorted(last, "right")
    return {"version": metric.version, **_thinned(steps[begin:end], numbers[begin:end])}


def _thinned(steps: Any, numbers: Any) -> dict[str, list[float]]:
    indices = downsample(steps, numbers, LIMIT) if len(steps) else slice(0)
    return {"x": steps[indices].tolist(), "y": [float(f"{number:.6g}") for number in numbers[indices].tolist()]}
