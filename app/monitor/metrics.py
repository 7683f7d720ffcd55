"""Logged metrics of a run for a browser: their names, and the values that the browser does not have yet."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.monitor.downsample import LIMIT, downsample
from app.text import t
from backend.job.problems import ProblemsError
from backend.runs.api import CLOSED, GROUPS, WATCHED, Described, Metric, describe
from backend.runs.database import Reader

Have = Mapping[str, tuple[int, int]]
"""Name -> version and last step of the values that a browser has."""


def names(metrics: Mapping[str, Any], lang: str) -> list[dict[str, Any]]:
    """Return the names of a run by group. A group has the known names first."""
    return [_name(described, lang) for described in ordered(metrics)]


def axis(reader: Reader, run: str) -> dict[str, Any]:
    """Return the known points of the axes of time, tokens and samples by step."""
    known, samples = reader.axis(run), None
    with suppress(ProblemsError):  # the job of a run that an older version launched may be unreadable
        job = reader.job(run)
        samples = None if WATCHED in job.unknown else job.global_batch
    return {"steps": known.steps, "time": known.times, "tokens": known.tokens, "samples": samples}


def ordered(names: Sequence[str] | Mapping[str, Any]) -> list[Described]:
    """Return names in the order of the page: known groups, then the others; in a group, the known names first."""
    return sorted(map(describe, names), key=lambda metric: metric.place)


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
        "is_mark": described.is_eval and described.key == "loss",
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


def titles(names: Sequence[str], lang: str) -> list[list[str]]:
    """Return [name, words] of each name, in the order of the page."""
    return [[metric.name, title(metric, lang)] for metric in ordered(names)]


def values(reader: Reader, metric: Metric, version: int, last: int, *, limit: int = LIMIT) -> dict[str, Any]:
    """Return the values of a metric that a browser lacks. `from` is set if they follow those it has.

    `version` and `last`: version and last step of the values that the browser has. An answer has at most `limit`.
    """
    head: dict[str, Any] = {"version": metric.version, "last": metric.last_step}
    if version == metric.version and 0 <= last < metric.last_step:
        steps, numbers = reader.metric_news(metric, last)
        if len(steps) <= limit // 2:
            return {**head, "from": last, **_thinned(steps, numbers, limit)}
    return {**head, **_thinned(*reader.metric_values(metric, least=limit // 4), limit)}


def detail(reader: Reader, metric: Metric, first: int, last: int, *, limit: int = LIMIT) -> dict[str, Any]:
    """Return at most `limit` values of a metric for the steps `first` to `last`."""
    steps, numbers = reader.metric_values(metric, first, last, least=limit // 4)
    begin, end = steps.searchsorted(first), steps.searchsorted(last, "right")
    return {"version": metric.version, **_thinned(steps[begin:end], numbers[begin:end], limit)}


def _thinned(steps: NDArray[np.int64], numbers: NDArray[np.float64], limit: int) -> dict[str, list[float]]:
    indices = downsample(steps, numbers, limit) if len(steps) else np.arange(0)
    return {"x": steps[indices].tolist(), "y": [float(f"{number:.6g}") for number in numbers[indices].tolist()]}
