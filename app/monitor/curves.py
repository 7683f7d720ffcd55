"""Curves of a run for a browser: the whole downsampled curve, the new points, or a range of steps in detail."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.monitor.downsample import LIMIT, downsample
from backend.runs.api import END, Curves
from backend.runs.database import Reader


def part(reader: Reader, run: str, generation: int | None, seq: int | None, *, limit: int = LIMIT) -> dict[str, Any]:
    """Return the points after (generation, seq), or the whole curve if the browser's points are outdated.

    `from` is set if the answer only adds points. It is the cursor before them. A series of a whole curve has at most
    `limit` points.
    """
    state = reader.curve_state(run)
    cursor = {"generation": state.generation, "seq": state.seq}
    if generation == state.generation and seq is not None and 0 <= seq <= state.seq:
        added = reader.new_points(run, state, seq, most=limit // 2)
        if added is not None:
            series = {name: _to_json(curve) for name, curve in added.items() if len(curve[0])}
            return {**cursor, "from": seq, "series": series}
    return {**cursor, "series": _thinned(reader.curves(run, state, least=limit // 4), limit)}


def detail(reader: Reader, run: str, first: int, last: int, *, limit: int = LIMIT) -> dict[str, Any]:
    """Return the steps `first` to `last`. A series has at most `limit` points."""
    state = reader.curve_state(run)
    curves = reader.curves(run, state, first, last, least=limit // 4)
    return {
        "generation": state.generation,
        "first": first,
        "last": last,
        "series": _thinned(curves, limit, first, last),
    }


def _thinned(curves: Curves, limit: int, first: int = 0, last: int = END) -> dict[str, dict[str, list[float]]]:
    answer = {}
    for name, (steps, values) in curves.items():
        begin, end = steps.searchsorted(first), steps.searchsorted(last, "right")
        indices = downsample(steps[begin:end], values[begin:end], limit) + begin
        answer[name] = _to_json((steps[indices], values[indices]))
    return answer


def _to_json(curve: tuple[NDArray[np.int64], NDArray[np.float64]]) -> dict[str, list[float]]:
    steps, values = curve
    return {"x": steps.tolist(), "y": [_short(value) for value in values.tolist()]}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
