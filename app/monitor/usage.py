"""How busy the nodes of a run were over its time, for one chart: of each node only the stretches that the tab lacks."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from app.monitor.question import UsageQuestion
from backend.jobs import usage
from backend.jobs.store import Store
from backend.jobs.usage import Stretch

MEASURES = ("utilization", "memory", "power", "load", "host_memory")
"""In the order of their buttons; the first that a node of the run tells is shown at first."""
_WORST = {"utilization": min, "memory": max, "power": min}
"""The GPU of a node that is named beside its mean: the one that lags, or the one that will be full first."""


def part(store: Store, run: str, ranks: Sequence[int], asked: UsageQuestion | None) -> dict[str, Any] | None:
    """The stretches that the tab lacks of the measure it shows; None when it lacks none, or does not ask now.

    A node's answer begins `from` the newest stretch that the tab has, which may have grown; without `from` it is whole.
    """
    if asked is None:
        return None
    with store.read() as connection:
        newest = {rank: one for rank in ranks if (one := usage.newest(connection, run, rank))}
        told = [name for name in MEASURES if any(name in one.measures for one in newest.values())]
        if not told:
            return None
        measure = asked.measure if asked.measure in told else told[0]
        have = asked.have if measure == asked.measure else {}
        nodes = [
            _node(connection, run, rank, measure, one, have.get(rank))
            for rank, one in newest.items()
            if have.get(rank) != (one.width, one.start, one.beats)
        ]
    return {"measure": measure, "measures": told, "nodes": nodes} if nodes else None


def _node(
    connection: sqlite3.Connection, run: str, rank: int, measure: str, newest: Stretch, has: tuple[int, ...] | None
) -> dict[str, Any]:
    since = has[1] if has and has[0] == newest.width else None
    rows = usage.stretches(connection, run, rank, since=since or 0)
    shown = [_row(row, measure) for row in rows if measure in row.measures]
    begin: Mapping[str, int] = {} if since is None else {"from": since}
    return {"rank": rank, "have": [newest.width, newest.start, newest.beats], **begin, "rows": shown}


def _row(stretch: Stretch, measure: str) -> list[Any]:
    """[start, mean, lowest, highest], and of several GPUs the worst one: its value and its index."""
    told = stretch.measures[measure]
    mean = sum(told.devices.values()) / len(told.devices)
    row: list[Any] = [stretch.start, *(float(f"{value:.4g}") for value in (mean, told.low, told.high))]
    if len(told.devices) > 1 and measure in _WORST:
        worst = _WORST[measure](told.devices, key=lambda name: told.devices[name])
        row += [float(f"{told.devices[worst]:.4g}"), int(worst)]
    return row
