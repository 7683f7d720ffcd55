"""Utilization of the nodes of a run over its whole time: at most ROWS rows per node.

A row is a stretch of time. Once a node has more rows, each two neighbours become one of twice the width. Means stay
means, and the lowest and highest values of both parts are kept, so no dip or peak is lost.
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
    last = newest(connection, run, rank)
    for beat in beats:
        width = last.width if last else NARROWEST_S
        start = math.floor(min(beat["time"] - offset_s, received) / width) * width
        told = Stretch(start=start, width=width, beats=1, measures=_measures(beat))
        if last and start <= last.start:
            last = _joined([last, told])
        else:
            if last:
                _put(connection, run, rank, last)
            last = told
    if last:
        _put(connection, run, rank, last)
        _bound(connection, run, rank)


def newest(connection: sqlite3.Connection, run: str, rank: int) -> Stretch | None:
    """Return the newest stretch of a node; None before the first heartbeat."""
    row = connection.execute(
        "SELECT * FROM usage WHERE run = ? AND rank = ? ORDER BY start DESC LIMIT 1", (run, rank)
    ).fetchone()
    return None if row is None else _stretch(row)


def stretches(connection: sqlite3.Connection, run: str, rank: int, *, since: int = 0) -> list[Stretch]:
    """Return a node's stretches from one on, oldest first."""
    rows = connection.execute(
        "SELECT * FROM usage WHERE run = ? AND rank = ? AND start >= ? ORDER BY start", (run, rank, since)
    )
    return [_stretch(row) for row in rows]


def measured(
    connection: sqlite3.Connection, run: str, rank: int, measure: str, *, width: int, since: int = 0
) -> list[tuple[int, Measured]]:
    """Return (start, value) of one measure of a node, in stretches of a width, from one on, without missing values.

    `width`: that of the stretches, or a multiple of it.
    """
    rows = connection.execute(
        "SELECT start, beats, json_extract(data, '$.' || ?) AS told FROM usage"
        " WHERE run = ? AND rank = ? AND start >= ? ORDER BY start",
        (measure, run, rank, since),
    )
    told = (
        (row["start"] // width * width, _measured(*_FINITE.decode(row["told"])), row["beats"])
        for row in rows
        if row["told"] is not None
    )
    parts = ((start, [one[1:] for one in alike]) for start, alike in groupby(told, key=itemgetter(0)))
    return [(start, one[0][0] if len(one) == 1 else _mean(one)) for start, one in parts]


def _put(connection: sqlite3.Connection, run: str, rank: int, one: Stretch) -> None:
    told = {name: [m.low, m.high, m.devices] for name, m in one.measures.items()}
    data = json.dumps(told, separators=(",", ":"))
    connection.execute(
        "REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?)", (run, rank, one.start, one.width, one.beats, data)
    )


def _bound(connection: sqlite3.Connection, run: str, rank: int) -> None:
    where = (run, rank)
    count = connection.execute("SELECT count(*) FROM usage WHERE run = ? AND rank = ?", where).fetchone()[0]
    if count <= ROWS:
        return
    rows = stretches(connection, run, rank)
    while len(rows) > ROWS:
        width = 2 * rows[-1].width
        wider = [replace(row, start=row.start // width * width, width=width) for row in rows]
        rows = [_joined([*alike]) for _, alike in groupby(wider, key=lambda row: row.start)]
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
        has = [(part.devices[device], beats) for part, beats in parts if device in part.devices]
        devices[device] = _short(sum(value * beats for value, beats in has) / sum(beats for _, beats in has))
    return Measured(low=min(part.low for part, _ in parts), high=max(part.high for part, _ in parts), devices=devices)


def _measures(beat: Heartbeat) -> dict[str, Measured]:
    gpus = {str(gpu["index"]): gpu for gpu in beat.get("gpus", ())}
    told = {
        "utilization": {name: gpu.get("utilization") for name, gpu in gpus.items()},
        "memory": {name: _percent(gpu) for name, gpu in gpus.items()},
        "power": {name: gpu.get("power_w") for name, gpu in gpus.items()},
        "load": {"": beat.get("load1")},
        "host_memory": {"": _percent(beat)},
    }
    return dict(_known(told))


def _known(told: Mapping[str, Mapping[str, float | None]]) -> Iterator[tuple[str, Measured]]:
    for measure, devices in told.items():
        values = {name: _short(value) for name, value in devices.items() if value is not None}
        if values:
            mean = _short(sum(values.values()) / len(values))
            yield measure, Measured(low=mean, high=mean, devices=values)


def _percent(owner: Mapping[str, Any]) -> float | None:
    used, total = owner.get("memory_used_mib"), owner.get("memory_total_mib")
    return 100 * used / total if used is not None and total is not None and total >= 1 else None


def _short(value: float) -> float:
    return round(value, 2)


def _stretch(row: sqlite3.Row) -> Stretch:
    told = _FINITE.decode(row["data"])
    measures = {name: _measured(*values) for name, values in told.items()}
    return Stretch(start=row["start"], width=row["width"], beats=row["beats"], measures=measures)


def _measured(low: float, high: float, devices: Mapping[str, float]) -> Measured:
    return Measured(low=low, high=high, devices=_named(devices))


_FINITE = json.JSONDecoder(parse_constant=lambda _: 0.0)
"""Older servers stored infinite values."""


def _named(devices: Mapping[str, float]) -> Mapping[str, float]:
    """Keys `0`, `1`, ...: older servers wrote `0.0`, or any name that a node gave its GPUs."""
    if all(name.isdecimal() or not name for name in devices):
        return devices
    whole = {name.removesuffix(".0"): value for name, value in devices.items()}
    return {name: value for name, value in whole.items() if name.isdecimal()} or {"": 0.0}
