"""An event simulation of Megatron's pipeline schedules, 1F1B and interleaved, over unequal stages and chunks.

A stage runs its passes in the order of megatron-core 0.16.1's core/pipeline_parallel/schedules.py
(get_pp_rank_microbatches, get_schedule_table, with micro-batch groups of PP) and waits for what a pass needs; sending
takes no time. One run serves many plans at once: times may be NumPy arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from backend.estimate.array_ops import Array, Number

Times = Sequence[Number | Sequence[Number]]
"""For each stage the time of one micro-batch: one number, which is spread evenly over its model chunks, or one for each
chunk."""


Chunks = Sequence[Sequence[Number]]
"""For each stage the time of one micro-batch through each of its chunks."""
Places = npt.NDArray[np.intp]


class Pass(NamedTuple):
    """The forward or backward pass of one micro-batch through one model chunk of a stage."""

    is_forward: bool
    chunk: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Event:
    """A pass with its stage and its time, in the unit of the given times."""

    stage: int
    chunk: int
    micro_batch: int
    is_forward: bool
    start: float
    end: float


def simulate(forward: Times, backward: Times, virtual: int, micro_batches: int) -> list[Event]:
    """Return every pass of an iteration, in an order in which they can run; times are plain numbers.

    Raises ValueError where interleaved micro-batches do not fill groups of PP, as Megatron does.
    """
    order = _order(len(forward), virtual, micro_batches)
    times = cast("list[float]", _flat(chunk_times(forward, virtual), chunk_times(backward, virtual)))
    return [
        Event(stage, item.chunk, item.micro_batch, item.is_forward, end - times[which], end)
        for (stage, item), (_, _, which), end in zip(order.passes, order.steps, _ends(order, times)[1:], strict=True)
    ]


def duration(forward: Times, backward: Times, virtual: int, micro_batches: int) -> Number:
    """Return the end of the last pass of an iteration; times may be arrays of plans. Raises what `simulate` raises."""
    return chunks_duration(chunk_times(forward, virtual), chunk_times(backward, virtual), virtual, micro_batches)


def chunks_duration(forward: Chunks, backward: Chunks, virtual: int, micro_batches: int) -> Number:
    """Return `duration` from the times of all chunks."""
    order = _order(len(forward), virtual, micro_batches)
    times = _flat(forward, backward)
    if [time for time in times if type(time) is ndarray]:
        return _end_of_many(order, np.stack(np.broadcast_arrays(*times)).astype(float))
    # The last pass of the first stage ends after all others.
    return _ends(order, cast("list[float]", times))[-1]


def chunk_times(times: Times, virtual: int) -> Chunks:
    """Return the time of each chunk of each stage."""
    # Only what is no tuple is asked for its class in three ways.
    return [
        time if type(time) is tuple or not isinstance(time, (int, float, ndarray)) else [time / virtual] * virtual
        for time in times
    ]


def passes(pipeline: int, virtual: int, micro_batches: int, stage: int) -> list[Pass]:
    """Return the order in which a stage runs its passes: warm-up forwards, pairs of forward and backward, the rest."""
    group, count = pipeline * virtual, micro_batches * virtual

    def unit(index: int, *, is_forward: bool) -> Pass:
        chunk = index % group // pipeline
        micro_batch = index // group * pipeline + index % pipeline
        return Pass(is_forward, chunk if is_forward else virtual - 1 - chunk, micro_batch)

    ahead = pipeline - stage - 1
    warm_up = min(ahead if virtual == 1 else 2 * ahead + (virtual - 1) * pipeline, count)
    forward = [unit(index, is_forward=True) for index in range(count)]
    backward = [unit(index, is_forward=False) for index in range(count)]
    steady = [item for pair in zip(forward[warm_up:], backward, strict=False) for item in pair]
    return [*forward[:warm_up], *steady, *backward[count - warm_up :]]


def waits_for(item: Pass, stage: int, pipeline: int, virtual: int) -> tuple[int, Pass] | None:
    """Return the stage and the pass whose result a pass needs; None for the first pass of a micro-batch."""
    _, chunk, index = item
    if item.is_forward:
        if stage:
            return stage - 1, item
        return (pipeline - 1, Pass(True, chunk - 1, index)) if chunk else None
    if stage < pipeline - 1:
        return stage + 1, item
    if chunk < virtual - 1:
        return 0, Pass(False, chunk + 1, index)
    return stage, Pass(True, chunk, index)


@dataclass(frozen=True, slots=True)
class _Order:
    """Dependencies between passes, in levels. The passes of a level depend on earlier levels only."""

    passes: list[tuple[int, Pass]]
    """(stage, pass), level by level."""
    durations: Places
    """For each pass, the index of its (direction, stage, chunk)."""
    own: Places
    """For each pass, the previous pass of its stage; the number of passes if there is none."""
    needed: Places
    """For each pass, the pass whose result it needs."""
    finals: Places
    """The last pass of each stage."""
    bounds: list[tuple[int, int]]
    """[first, last) pass of each level."""
    steps: list[tuple[int, int, int]]
    """(own, needed, duration) of each pass, as plain numbers; indices start at 1, 0 for none."""


@lru_cache(maxsize=512)
def _order(pipeline: int, virtual: int, micro_batches: int) -> _Order:
    if virtual > 1 and micro_batches % pipeline:
        raise ValueError(f"{micro_batches} micro-batches do not fill groups of {pipeline}")
    orders = [passes(pipeline, virtual, micro_batches, stage) for stage in range(pipeline)]
    followed, awaited, levels = _followed(orders, virtual)
    by_level = np.argsort(levels, kind="stable")
    position = np.empty(len(followed) + 1, dtype=int)
    position[[*by_level, len(followed)]] = np.arange(len(followed) + 1)
    ordered = [followed[index] for index in by_level]
    durations = [((not item.is_forward) * pipeline + stage) * virtual + item.chunk for stage, item in ordered]
    edges = [0, *np.flatnonzero(np.diff(np.array(levels)[by_level])) + 1, len(followed)]
    pairs = position[np.array(awaited)[by_level]]
    own, needed = np.ascontiguousarray(pairs.T)
    # No other pass of the stage follows its last pass.
    finals = np.setdiff1d(np.arange(len(followed)), own)
    step_index = [1 + index if index < len(followed) else 0 for index in range(len(followed) + 1)]
    steps = [
        (step_index[previous], step_index[awaits], which)
        for previous, awaits, which in zip(own, needed, durations, strict=True)
    ]
    return _Order(ordered, np.array(durations), own, needed, finals, [*pairwise(edges)], steps)


def _followed(
    orders: list[list[Pass]], virtual: int
) -> tuple[list[tuple[int, Pass]], list[tuple[int, int]], list[int]]:
    """Return the passes of all stages in an order in which they can run, their dependencies, and their levels."""
    pipeline, nothing = len(orders), sum(map(len, orders))
    followed: list[tuple[int, Pass]] = []
    awaited: list[tuple[int, int]] = []
    levels: list[int] = []
    number: dict[tuple[int, Pass] | None, int] = {None: nothing}
    places, last = [0] * pipeline, [nothing] * pipeline
    while len(followed) < nothing:
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                item = order[places[stage]]
                needed = number.get(waits_for(item, stage, pipeline, virtual))
                if needed is None:
                    break
                pair = last[stage], needed
                levels.append(1 + max((levels[index] for index in pair if index != nothing), default=-1))
                awaited.append(pair)
                last[stage] = number[stage, item] = len(followed)
                followed.append((stage, item))
                places[stage] += 1
    return followed, awaited, levels


def _flat(forward: Chunks, backward: Chunks) -> list[Number]:
    """Return the time of a pass by (direction, stage, chunk)."""
    return [time for table in (forward, backward) for stage in table for time in stage]


def _ends(order: _Order, times: list[float]) -> list[float]:
    """Return 0, and then the end of each pass."""
    ends = [0.0]
    for own, needed, which in order.steps:
        first, second = ends[own], ends[needed]
        ends.append((first if first > second else second) + times[which])
    return ends


def _end_of_many(order: _Order, times: Array) -> Array:
    """Return the end of the last pass for arrays of plans, level by level; `times` has one column for each plan."""
    ends = np.zeros((len(order.own) + 1, times.shape[1]))
    for first, last in order.bounds:
        level = ends[first:last]
        np.maximum(ends[order.own[first:last]], ends[order.needed[first:last]], out=level)
        level += times[order.durations[first:last]]
    finals: Array = ends[order.finals]
    return np.asarray(finals.max(axis=0))
