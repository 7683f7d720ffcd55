"""The estimate as JSON data, the contract of `megaboard estimate --json`."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from backend.estimate.estimate import Estimate


def to_json(estimate: Estimate | None, problems: Iterable[Mapping[str, Any]] = (), *, name: str = "") -> dict[str, Any]:
    """Return every figure of the estimate except those of single model chunks, and the rendered problems.

    Without an estimate (an illegal plan, or one that is not modelled) the result has only the name and the problems.
    """
    rendered = [dict(problem) for problem in problems]
    if estimate is None:
        return {"name": name, "problems": rendered}
    figures = dataclasses.asdict(estimate)
    del figures["chunk_times"]
    for unknown in ("memory_unknown", "time_unknown"):
        figures[unknown] = list(figures[unknown])
    figures["stages"] = [dict(stage) for stage in figures["stages"]]
    if estimate.stage_times is not None:
        figures["stage_times"] = [list(times) for times in estimate.stage_times]
    return {**figures, "problems": rendered}
