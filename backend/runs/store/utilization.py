"""Utilization of the nodes of a run over its whole time: at most ROWS rows per node.

A row is a stretch of time. When a node has more rows, each pair of neighbours becomes one row of twice the width. The
mean of both neighbours and their lowest and highest values are kept. So no dip or peak is lost.
"""

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from backend.runs.collect.node_records import Heartbeat

ROWS = 480
"""Enough for a chart as wide as a screen. A row takes a kilobyte at most."""
NARROWEST_S = 4
"""Interval of two heartbeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One measure of a node in a stretch."""

    low: float
    """The lowest value of the node's heartbeats, each the mean of its devices."""
    high: float
    devices: Mapping[str, float]
    """GPU index -> its mean; the host is the device without a name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Measures of a node in [start, start + width), by our clock."""

    start: int
    width: int
    beats: int
    measures: Mapping[str, Measured]
    """utilization, memory and host_memory (%), power (W), load (processes), where the node reports them."""


def add(
    connection: sqlite3.Connection,
    run: str,
    rank: int,
    beats: Sequence[Heartbeat],
    *,
    offset_s: float,
    received: float,
) -> None:
    """Add heartbeats of a node, oldest first. Its clock is `offset_s` ahead of ours."""
    open_stretch = stored = newest(connection, run, rank)
    for beat in beats:
        width = open_stretch.width if open_stretch else NARROWEST_S
        start = math.floor(min(beat["time"] - offset_s, received) / width) * width
        stretch = Stretch(start=start, width=width, beats=1, measures=_measures(beat))
        if open_stretch and start <= open_stretch.start:
            open_stretch = _joined([open_stretch, stretch])
        else:
            if open_stretch:
                _put(connection, run, rank, open_stretch)
            open_stretch = stretch
    if open_stretch:
        _put(connection, run, rank, open_stretch)
    if open_stretch and (stored is None or open_stretch.start != stored.start):
        _limit_rows(connection, run, rank)


def newest(connection: sqlite3.Connection, run: str, rank: int) -> Stretch | None:
    """Return the newest stretch of a node; None before the first heartbeat."""
    row = connection.execute(
        "SELECT * FROM usage WHERE run = ? AND rank = ? ORDER BY start DESC LIMIT 1", (run, rank)
    ).fetchone()
    return None if row is None else _stretch(row)


def stretches(connection: sqlite3.Connection, run: str, rank: int, *, since: int = 0) -> list[Stretch]:
    """Return the stretches of a node that start at `since` or later, oldest first."""
    rows = connection.execute(
        "SELECT * FROM usage WHERE run = ? AND rank = ? AND start >= ? ORDER BY start", (run, rank, since)
    )
    return [_stretch(row) for row in rows]


def measured(
    connection: sqlite3.Connection, run: str, rank: int, measure: str, *, width: int, since: int = 0
) -> list[tuple[int, Measured]]:
    """Return (start, value) of one measure of a node in each stretch from `since` on, without missing values.

    `width`: seconds of the returned stretches, a multiple of the width of the stored ones.
    """
    rows = connection.execute(
        "SELECT start, beats, json_extract(data, '$.' || ?) AS measured FROM usage"
        " WHERE run = ? AND rank = ? AND start >= ? ORDER BY start",
        (measure, run, rank, since),
    )
    values = (
        (row["start"] // width * width, _measured(*_FINITE.decode(row["measured"])), row["beats"])
        for row in rows
        if row["measured"] is not None
    )
    groups = ((start, [value[1:] for value in group]) for start, group in groupby(values, key=itemgetter(0)))
    return [(start, group[0][0] if len(group) == 1 else _mean(group)) for start, group in groups]


def _put(connection: sqlite3.Connection, run: str, rank: int, stretch: Stretch) -> None:
    measures = {name: [value.low, value.high, value.devices] for name, value in stretch.measures.items()}
    data = json.dumps(measures, separators=(",", ":"))
    connection.execute(
        "REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?)",
        (run, rank, stretch.start, stretch.width, stretch.beats, data),
    )


def _limit_rows(connection: sqlite3.Connection, run: str, rank: int) -> None:
    where = (run, rank)
    count = connection.execute("SELECT count(*) FROM usage WHERE run = ? AND rank = ?", where).fetchone()[0]
    if count <= ROWS:
        return
    rows = stretches(connection, run, rank)
    while len(rows) > ROWS:
        width = 2 * rows[-1].width
        wider = [replace(row, start=row.start // width * width, width=width) for row in rows]
        rows = [_joined([*group]) for _, group in groupby(wider, key=lambda row: row.start)]
    connection.execute("DELETE FROM usage WHERE run = ? AND rank = ?", where)
    for row in rows:
        _put(connection, run, rank, row)


def _joined(parts: Sequence[Stretch]) -> Stretch:
    """Return one stretch for several: start and width of the first, all heartbeats, and their mean, least and most."""
    names = dict.fromkeys(name for part in parts for name in part.measures)
    measures = {name: _mean([(p.measures[name], p.beats) for p in parts if name in p.measures]) for name in names}
    return replace(parts[0], beats=sum(part.beats for part in parts), measures=measures)


def _mean(parts: Sequence[tuple[Measured, int]]) -> Measured:
    devices = {}
    for device in dict.fromkeys(name for part, _ in parts for name in part.devices):
        means = [(part.devices[device], beats) for part, beats in parts if device in part.devices]
        devices[device] = _rounded(sum(value * beats for value, beats in means) / sum(beats for _, beats in means))
    return Measured(low=min(part.low for part, _ in parts), high=max(part.high for part, _ in parts), devices=devices)


def _measures(beat: Heartbeat) -> dict[str, Measured]:
    gpus = {str(gpu["index"]): gpu for gpu in beat.get("gpus", ())}
    values = {
        "utilization": {name: gpu.get("utilization") for name, gpu in gpus.items()},
        "memory": {name: _percent(gpu) for name, gpu in gpus.items()},
        "power": {name: gpu.get("power_w") for name, gpu in gpus.items()},
        "load": {"": beat.get("load1")},
        "host_memory": {"": _percent(beat)},
    }
    return dict(_reported(values))


def _reported(measures: Mapping[str, Mapping[str, float | None]]) -> Iterator[tuple[str, Measured]]:
    for measure, devices in measures.items():
        values = {name: _rounded(value) for name, value in devices.items() if value is not None}
        if values:
            mean = _rounded(sum(values.values()) / len(values))
            yield measure, Measured(low=mean, high=mean, devices=values)


def _percent(owner: Mapping[str, Any]) -> float | None:
    used, total = owner.get("memory_used_mib"), owner.get("memory_total_mib")
    return 100 * used / total if used is not None and total is not None and total >= 1 else None


def _rounded(value: float) -> float:
    return round(value, 2)


def _stretch(row: sqlite3.Row) -> Stretch:
    measures = {name: _measured(*values) for name, values in _FINITE.decode(row["data"]).items()}
    return Stretch(start=row["start"], width=row["width"], beats=row["beats"], measures=measures)


def _measured(low: float, high: float, devices: Mapping[str, float]) -> Measured:
    return Measured(low=low, high=high, devices=_by_index(devices))


_FINITE = json.JSONDecoder(parse_constant=lambda _: 0.0)
"""Decoder that reads infinity and NaN as 0, because older servers stored such values."""


def _by_index(devices: Mapping[str, float]) -> Mapping[str, float]:
    """Return the means by GPU index, such as `0`. Older servers wrote `0.0`, or any name that a node gave its GPUs."""
    if all(name.isdecimal() or not name for name in devices):
        return devices
    by_index = {name.removesuffix(".0"): value for name, value in devices.items()}
    return {name: value for name, value in by_index.items() if name.isdecimal()} or {"": 0.0}
