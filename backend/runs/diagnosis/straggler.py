"""Finds why the steps of a gang became slower, and which node differs: every step waits for the slowest node.

A GPU reports why its clock is limited. Where none does, the finding names a GPU with a far lower clock or a node with a
far higher load. Otherwise the use of the GPUs shows whether they wait for data.
"""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Literal

from backend.runs.collect.node_records import GpuOfBeat
from backend.runs.diagnosis.findings import Held, Loaded, Straggler
from backend.runs.records import NodeSnapshot
from backend.runs.store import metrics

NEWEST, NEWEST_S = 20, 60.0
"""Number of steps whose median is compared, or as many as usually take this time. A save, an evaluation or a short load
of shared processors is no straggler.
"""
LEAST_BEFORE = 40
LOOKED_AT = 1000
"""Number of steps. Slowness in more than half of them counts as usual."""
SLOWER = 1.25
"""Factor of the usual step time: samples differ in length, and so do steps."""
BLOCK = 5

LIMITS: Mapping[str, int] = {"thermal": 0x20 | 0x40, "power_brake": 0x80, "hardware": 0x8}
"""Reasons of a limited clock, the most specific first.

They are bits of nvml.h's nvmlClocksEventReasons (SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown,
HwSlowdown), from nvidia-ml-py 13. SwPowerCap is left out: at full load, a healthy GPU is at its power limit.
"""
LOOK_BACK_S = 60.0
SLOW_CLOCK = 0.85
"""Share of the median clock of all GPUs."""
MORE_LOAD, MORE_PROCESSES = 2.0, 8.0
"""Factor of the median load of the nodes, and the least difference in processes."""


def find_straggler(
    connection: sqlite3.Connection, run: str, attempt: int, *, nodes: Sequence[NodeSnapshot], now: float
) -> Straggler | None:
    """Return by how much the steps are slower and which nodes differ; None while the step time is as usual."""
    times = metrics.step_times(connection, run, attempt, count=LOOKED_AT)
    change = compare(times)
    if change is None:
        return None
    since, step_s, usual_s = change
    beats = {
        node.rank: metrics.recent_gpus(connection, run, attempt, node.rank, since=now - LOOK_BACK_S) for node in nodes
    }
    used = _values([gpu for node_beats in beats.values() for gpus in node_beats for gpu in gpus], "utilization")
    return Straggler(
        since_step=since,
        step_s=step_s,
        usual_s=usual_s,
        held=tuple(limited(beats)),
        loaded=tuple(_loaded(nodes)),
        utilization=fmean(used) if used else None,
    )


def is_slower(connection: sqlite3.Connection, run: str, attempt: int) -> bool:
    """Return whether the steps take longer than before. It reads the steps of rank 0 only."""
    return compare(metrics.step_times(connection, run, attempt, count=LOOKED_AT)) is not None


def compare(times: Sequence[tuple[int, float]]) -> tuple[int, float, float] | None:
    """Return (the first slow step, seconds of a step now, seconds before), or None. `times`: oldest first.

    The first step of an attempt compiles and loads, so it is ignored.
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


def limited(beats: Mapping[int, Sequence[Sequence[GpuOfBeat]]]) -> list[Held]:
    """Return the GPUs that report a limited clock in half of their heartbeats or more; else those with slow clocks."""
    gpus_by_position: dict[tuple[int, int], list[GpuOfBeat]] = {}
    for node, of_node in beats.items():
        for gpus in of_node:
            for gpu in gpus:
                gpus_by_position.setdefault((node, gpu["index"]), []).append(gpu)
    clocks = {
        position: median(clocks_mhz)
        for position, gpu_beats in gpus_by_position.items()
        if (clocks_mhz := _values(gpu_beats, "clock_mhz"))
    }
    usual = median(clocks.values()) if clocks else None
    limited = [
        Held(node=position[0], gpu=position[1], limit=limit, clock_mhz=clocks.get(position), usual_mhz=usual)
        for position, gpu_beats in gpus_by_position.items()
        if (limit := _limit(_values(gpu_beats, "clock_limits")))
    ]
    return limited or [
        Held(node=node, gpu=gpu, clock_mhz=clock, usual_mhz=usual)
        for (node, gpu), clock in clocks.items()
        if usual and clock < SLOW_CLOCK * usual
    ]


def _limit(reasons: Sequence[float]) -> str | None:
    """Return the reason that limited the clock in half of the reports or more."""
    return next(
        (
            name
            for name, bits in LIMITS.items()
            if reasons and 2 * sum(bool(int(reason) & bits) for reason in reasons) >= len(reasons)
        ),
        None,
    )


def _values(gpus: Sequence[GpuOfBeat], key: Literal["utilization", "clock_mhz", "clock_limits"]) -> list[float]:
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
