"""A gang whose steps take longer than they did, and what differs on one of its nodes: every step waits for the slowest.

A GPU says itself why its clock is held down. Where none does, a clock far below the others' or a node with far more to
do is named; else the GPUs' use tells whether they wait for data.
"""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Literal

from backend.runs.collect.node_records import Gpu
from backend.runs.diagnosis.findings import Held, Loaded, Slowdown
from backend.runs.records import NodeSnapshot
from backend.runs.store import metrics

NEWEST, NEWEST_S = 20, 60.0
"""Steps whose median is compared, or as many as usually take so long: a save or an evaluation is no slowdown, nor is a
moment in which a small job shares its processors."""
LEAST_BEFORE = 40
LOOKED_AT = 1000
"""Steps; what has been slow for more than half of them is what is usual now."""
SLOWER = 1.25
"""Times the usual step: samples differ in length, and so do steps."""
BLOCK = 5

LIMITS: Mapping[str, int] = {"thermal": 0x20 | 0x40, "power_brake": 0x80, "hardware": 0x8}
"""Those that say more come first. Bits of nvml.h's nvmlClocksEventReasons (SwThermalSlowdown, HwThermalSlowdown,
HwPowerBrakeSlowdown, HwSlowdown), from nvidia-ml-py 13. Not SwPowerCap: at full load a healthy GPU is at its limit."""
LOOK_BACK_S = 60.0
SLOW_CLOCK = 0.85
"""Of the median clock of all GPUs."""
MORE_LOAD, MORE_PROCESSES = 2.0, 8.0
"""Times the median of the nodes, and so many more."""


def slowdown(
    connection: sqlite3.Connection, run: str, attempt: int, *, nodes: Sequence[NodeSnapshot], now: float
) -> Slowdown | None:
    """None while steps take what they took."""
    times = metrics.step_times(connection, run, attempt, count=LOOKED_AT)
    found = compare(times)
    if found is None:
        return None
    since, step_s, usual_s = found
    beats = {
        node.rank: metrics.recent_gpus(connection, run, attempt, node.rank, since=now - LOOK_BACK_S) for node in nodes
    }
    used = _known([gpu for of_node in beats.values() for gpus in of_node for gpu in gpus], "utilization")
    return Slowdown(
        since_step=since,
        step_s=step_s,
        usual_s=usual_s,
        held=tuple(_held(beats)),
        loaded=tuple(_loaded(nodes)),
        utilization=fmean(used) if used else None,
    )


def compare(times: Sequence[tuple[int, float]]) -> tuple[int, float, float] | None:
    """(the first step of those that are slower, seconds of a step now, before), or None; `times`: oldest first.

    The first step of an attempt, which compiles and loads, says nothing.
    """
    seconds = [second for _, second in times[1:]]
    newest = max(NEWEST, math.ceil(NEWEST_S / median(seconds))) if seconds else NEWEST
    if len(seconds) < LEAST_BEFORE + newest:
        return None
    step_s, usual_s = median(seconds[-newest:]), median(seconds[:-newest])
    if step_s < SLOWER * usual_s:
        return None
    first, between = len(seconds) - newest // 2, (step_s + usual_s) / 2
    while first >= BLOCK and median(seconds[first - BLOCK : first]) > between:
        first -= BLOCK
    return times[1 + first][0], step_s, usual_s


def _held(beats: Mapping[int, Sequence[Sequence[Gpu]]]) -> list[Held]:
    """The GPUs that say in half of their heartbeats or more what holds them down; else those with slow clocks."""
    seen: dict[tuple[int, int], list[Gpu]] = {}
    for node, of_node in beats.items():
        for gpus in of_node:
            for gpu in gpus:
                seen.setdefault((node, gpu["index"]), []).append(gpu)
    clocks = {place: median(known) for place, all_of_one in seen.items() if (known := _known(all_of_one, "clock_mhz"))}
    usual = median(clocks.values()) if clocks else None
    found = [
        Held(node=place[0], gpu=place[1], limit=limit, clock_mhz=clocks.get(place), usual_mhz=usual)
        for place, all_of_one in seen.items()
        if (limit := _limit(_known(all_of_one, "clock_limits")))
    ]
    return found or [
        Held(node=node, gpu=gpu, clock_mhz=clock, usual_mhz=usual)
        for (node, gpu), clock in clocks.items()
        if usual and clock < SLOW_CLOCK * usual
    ]


def _limit(told: Sequence[float]) -> str | None:
    """What held it down in half of what it told, or more."""
    return next(
        (name for name, bits in LIMITS.items() if told and 2 * sum(bool(int(one) & bits) for one in told) >= len(told)),
        None,
    )


def _known(gpus: Sequence[Gpu], key: Literal["utilization", "clock_mhz", "clock_limits"]) -> list[float]:
    return [gpu[key] for gpu in gpus if key in gpu]


def _loaded(nodes: Sequence[NodeSnapshot]) -> list[Loaded]:
    loads = {node.rank: float(node.host["load1"]) for node in nodes if "load1" in node.host}
    if len(loads) < 2:
        return []
    usual = median(loads.values())
    return [
        Loaded(node=rank, load=load, usual=usual)
        for rank, load in loads.items()
        if load > MORE_LOAD * usual and load > usual + MORE_PROCESSES
    ]
