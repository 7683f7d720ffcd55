"""The curves of a run for a browser: the whole thinned curve, the new points, or a range of steps in detail."""

from typing import Any

from app.monitor.downsample import LIMIT, downsample
from backend.runs.api import END, Curves
from backend.runs.database import Reader


def part(reader: Reader, run: str, generation: int | None, seq: int | None) -> dict[str, Any]:
    """The points after (generation, seq) for a browser; the whole curve if the browser has nothing usable.

    An answer that only adds points names the cursor where they begin: `from`.
    """
    upto = reader.curve_state(run)
    told = {"generation": upto.generation, "seq": upto.seq}
    if generation == upto.generation and seq is not None and 0 <= seq <= upto.seq:
        grown = reader.new_points(run, upto, seq, most=LIMIT // 2)
        if grown is not None:
            return {**told, "from": seq, "series": {name: _all(one) for name, one in grown.items() if len(one[0])}}
    return {**told, "series": _thinned(reader.curves(run, upto))}


def detail(reader: Reader, run: str, first: int, last: int) -> dict[str, Any]:
    """The steps `first` to `last`, with as many points as the whole curve has."""
    upto = reader.curve_state(run)
    found = reader.curves(run, upto, first, last)
    return {"generation": upto.generation, "first": first, "last": last, "series": _thinned(found, first, last)}


def _thinned(curves: Curves, first: int = 0, last: int = END) -> dict[str, dict[str, list[float]]]:
    answer = {}
    for name, (steps, values) in curves.items():
        begin, end = steps.searchsorted(first), steps.searchsorted(last, "right")
        kept = downsample(steps[begin:end], values[begin:end], LIMIT) + begin
        answer[name] = _all((steps[kept], values[kept]))
    return answer


def _all(curve: Any) -> dict[str, list[float]]:
    steps, values = curve
    return {"x": steps.tolist(), "y": [_short(value) for value in values.tolist()]}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
