"""Legal plans in the order in which estimate/batched.py computes them, with lines for choices that all plans have."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from backend.estimate.batched import OF_LAYERS, OF_STAGES, Columns, Indices, Lines, PlanBatch, Rows, plan_batch
from backend.job.job import Job
from backend.job.rules.batched import Column, Legal, Space, as_sizes
from backend.planning.space import ACCUMULATION, CHOSEN, MICRO_BATCH, SHARDED

_RECOMPUTE = "parallel.recompute"


def in_order(legal: Legal) -> tuple[Legal, PlanBatch]:
    """Sort plans: those with the same stages are adjacent, and among them those whose layers cost the same."""
    cut, cost_group = (legal.space.keys(_axes(legal.space, paths))[0] for paths in (OF_STAGES, OF_LAYERS))
    space = legal.space.take(_lexsort(cut, cost_group))
    cut, _ = space.keys(_axes(space, OF_STAGES))
    lines, free = _lines(space, cut)
    cost_group, _ = space.keys([axis for axis in _axes(space, OF_LAYERS) if axis not in free])
    return replace(legal, space=space), plan_batch(partial(_columns, space), _choices(space), cut, cost_group, lines)


def _lexsort(first: Indices, second: Indices) -> Indices:
    """Return np.lexsort((second, first)) of whole numbers from 0. It is faster: it sorts one number a plan."""
    size = len(first)
    keys = (first.astype(np.int64) * (int(second.max(initial=0)) + 1) + second) * size + np.arange(size)
    keys.sort()
    order: Indices = keys % size
    return order


def _lines(space: Space, cut: Indices) -> tuple[Lines, list[int]]:
    """Return the largest set of choices that the plans of every cut have in all combinations, and their axes."""
    for paths in ((SHARDED, _RECOMPUTE), (_RECOMPUTE,), (SHARDED,)):
        free = _axes(space, paths)
        if len(free) == len(paths) and (lines := _lines_of(space, cut, free)):
            return lines, free
    return Lines(values={}, shape=(), order=np.arange(space.size)), []


def _lines_of(space: Space, cut: Indices, free: Sequence[int]) -> Lines | None:
    """Return the lines of these axes; None if a plan lacks one of their choices."""
    line, shape, firsts = np.zeros(space.size, np.int64), [], []
    for axis in free:
        _, first, codes = np.unique(space.codes[axis], return_index=True, return_inverse=True)
        line = line * len(first) + codes
        shape.append(len(first))
        firsts.append(first)
    known_axes = {*free, *_axes(space, OF_STAGES)}
    other_codes, _ = space.keys([axis for axis in range(len(space.axes)) if axis not in known_axes])
    count = prod(shape)
    order = _lexsort(cut.astype(np.int64) * count + line, other_codes)
    begins = [*np.flatnonzero(np.diff(cut, prepend=-1)).tolist(), space.size]
    for begin, end in pairwise(begins):
        if (end - begin) % count:
            return None
        rows = order[begin:end].reshape(count, -1)
        if (line[rows] != np.arange(count)[:, np.newaxis]).any() or (other_codes[rows] != other_codes[rows[0]]).any():
            return None
    values: dict[str, Column] = {}
    for number, (axis, first) in enumerate(zip(free, firsts, strict=True)):
        columns = _columns(space, first)
        for path in space.axes[axis].paths:
            if path in columns:
                values[path] = columns[path].reshape(-1, *[1] * (len(free) - number))
    return Lines(values=values, shape=tuple(shape), order=order)


def _axes(space: Space, paths: Sequence[str]) -> list[int]:
    """Return the axes that hold these paths, in the order of the paths."""
    return list(dict.fromkeys(space.axis_of[path][0] for path in paths if path in space.axis_of))


def _choices(space: Space) -> tuple[tuple[str, tuple[str, ...]], ...]:
    axis, _ = space.axis_of[_RECOMPUTE]
    return tuple((choice[0], choice[1]) for choice in space.axes[axis].values)


def _columns(space: Space, rows: Rows) -> Columns:
    """Return the columns of some plans, as estimate/batched.py reads them."""
    columns = {path: space.column(path, rows) for path in space.axis_of if path not in CHOSEN}
    axis, _ = space.axis_of[_RECOMPUTE]
    columns[_RECOMPUTE] = codes = space.codes[axis][rows]
    columns["parallel.recompute_num_layers"] = np.array([choice[2] or 1 for choice in space.axes[axis].values])[codes]
    samples = as_sizes(columns[MICRO_BATCH]) * _replicas(space.job, columns)
    columns[ACCUMULATION] = (space.job.training.global_batch_size or 0) // samples
    return columns


def _replicas(job: Job, columns: Columns) -> int | Indices:
    """Return DP of each plan; of all plans alike on an engine without the other sizes."""
    paths = ("parallel.tensor", "parallel.pipeline", "parallel.context")
    replicas: int | Indices = job.world_size // prod(as_sizes(columns[path]) for path in paths if path in columns)
    return replicas
