"""Legal plans as estimate/many.py computes them: in its order, with lines for the choices that all of them have."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from backend.estimate.batched import OF_LAYERS, OF_STAGES, Columns, Lines, Many, Rows, many_of
from backend.job.job import Job
from backend.job.rules.batched import Legal, Space
from backend.planning.order import Array
from backend.planning.space import ACCUMULATION, CHOSEN, MICRO_BATCH, SHARDED

_RECOMPUTE = "parallel.recompute"


def in_order(found: Legal) -> tuple[Legal, Many]:
    """The same with plans that are cut alike beside each other, and among them those whose layers cost the same."""
    cut, alike = (found.space.keys(_axes(found.space, paths))[0] for paths in (OF_STAGES, OF_LAYERS))
    space = found.space.take(_ordered(cut, alike))
    cut, _ = space.keys(_axes(space, OF_STAGES))
    lines, free = _lines(space, cut)
    alike, _ = space.keys([axis for axis in _axes(space, OF_LAYERS) if axis not in free])
    return replace(found, space=space), many_of(partial(_columns, space), _choices(space), cut, alike, lines)


def _ordered(first: Array, second: Array) -> Array:
    """np.lexsort((second, first)) of whole numbers from 0, in less time: as one number each, with its place."""
    size = len(first)
    keys = (first.astype(np.int64) * (int(second.max(initial=0)) + 1) + second) * size + np.arange(size)
    keys.sort()
    found: Array = keys % size
    return found


def _lines(space: Space, cut: Array) -> tuple[Lines, list[int]]:
    """The choices that all plans of a cut come with alike, and their axes; of these the most there are."""
    for paths in ((SHARDED, _RECOMPUTE), (_RECOMPUTE,), (SHARDED,)):
        free = _axes(space, paths)
        if len(free) == len(paths) and (lines := _lines_of(space, cut, free)):
            return lines, free
    return Lines(values={}, shape=(), order=np.arange(space.size)), []


def _lines_of(space: Space, cut: Array, free: Sequence[int]) -> Lines | None:
    """Those of these axes; None where a plan lacks one of their choices."""
    line, shape, firsts = np.zeros(space.size, np.int64), [], []
    for axis in free:
        _, first, codes = np.unique(space.codes[axis], return_index=True, return_inverse=True)
        line = line * len(first) + codes
        shape.append(len(first))
        firsts.append(first)
    told = {*free, *_axes(space, OF_STAGES)}
    rest, _ = space.keys([axis for axis in range(len(space.axes)) if axis not in told])
    count = prod(shape)
    order = _ordered(cut.astype(np.int64) * count + line, rest)
    begins = [*np.flatnonzero(np.diff(cut, prepend=-1)).tolist(), space.size]
    for begin, end in pairwise(begins):
        if (end - begin) % count:
            return None
        rows = order[begin:end].reshape(count, -1)
        if (line[rows] != np.arange(count)[:, np.newaxis]).any() or (rest[rows] != rest[rows[0]]).any():
            return None
    values: dict[str, Array] = {}
    for number, (axis, first) in enumerate(zip(free, firsts, strict=True)):
        columns = _columns(space, first)
        for path in space.axes[axis].paths:
            if path in columns:
                values[path] = columns[path].reshape(-1, *[1] * (len(free) - number))
    return Lines(values=values, shape=tuple(shape), order=order)


def _axes(space: Space, paths: Sequence[str]) -> list[int]:
    """The axes on which these paths are, in their order."""
    return list(dict.fromkeys(space.place[path][0] for path in paths if path in space.place))


def _choices(space: Space) -> tuple[tuple[str, tuple[str, ...]], ...]:
    axis, _ = space.place[_RECOMPUTE]
    return tuple((choice[0], choice[1]) for choice in space.axes[axis].values)


def _columns(space: Space, rows: Rows) -> Columns:
    """Some of the plans as estimate/many.py reads them."""
    columns: dict[str, Any] = {path: space.column(path, rows) for path in space.place if path not in CHOSEN}
    axis, _ = space.place[_RECOMPUTE]
    columns[_RECOMPUTE] = space.codes[axis][rows]
    layers = np.array([choice[2] or 1 for choice in space.axes[axis].values])
    columns["parallel.recompute_num_layers"] = layers[columns[_RECOMPUTE]]
    wanted = space.job.training.global_batch_size
    columns[ACCUMULATION] = wanted // (columns[MICRO_BATCH] * _copies(space.job, columns))
    return columns


def _copies(job: Job, columns: Columns) -> Any:
    sizes = [columns[path] for path in ("parallel.tensor", "parallel.pipeline", "parallel.context") if path in columns]
    return job.world_size // prod(sizes)
