"""Does one measured run tell how long other plans take? Published runs that differ in the plan alone say.

    python -m benchmarks.calibration [--json] [--write]

Each run of a group (same source, model and GPUs) in turn corrects the estimates of the others: their times are
multiplied by its measured over its estimated time. Printed are the median absolute errors of these, beside those of the
same estimates without a correction, by how far the correcting run itself was off. --write puts the median over all
groups into presets/calibration.yaml: the error that is shown with times that a run corrects. FP8 rows are left out.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import log
from statistics import median

import yaml

from backend.estimate.time.efficiency import default_efficiency
from backend.job.presets import data_folder
from benchmarks.fit import carried_rows
from benchmarks.timed import timed_rows
from benchmarks.timed_run import Timed

BOUNDS = (0.0, 0.05, 0.1, 0.2, 0.4, float("inf"))
"""Of the logarithm of measured over estimated."""
MOST_ROWS = 150
"""Of a group: pairs grow with the square."""

Pair = tuple[float, float]
"""(measured, estimated) seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Correcting runs that were off by so much, and the median errors on the other plans."""

    least: float
    most: float
    runs: int
    uncorrected: float
    corrected: float


def main() -> None:
    """Print the table, or the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    groups = plan_groups(timed_rows(carried_rows())[0])
    uncorrected, corrected = whole(groups)
    lines = by_distance(groups)
    if arguments.write:
        figures = {
            "typical_error": round(corrected, 3),
            "uncorrected_error": round(uncorrected, 3),
            "groups": len(groups),
            "date": datetime.now(UTC).date().isoformat(),
        }
        note = "# Written by: python -m benchmarks.calibration --write, which says what it is.\n"
        path = data_folder("presets") / "calibration.yaml"
        path.write_text(note + yaml.safe_dump(figures, sort_keys=False), encoding="utf-8")
    if arguments.json:
        print(json.dumps({"uncorrected": uncorrected, "corrected": corrected, "lines": [asdict(one) for one in lines]}))
        return
    print(f"{len(groups)} groups: median error {uncorrected:.1%} uncorrected, {corrected:.1%} corrected by one run")
    for one in lines:
        off = f"{one.least:.0%} to {one.most:.0%}"
        print(f"{off:>12} off: {one.runs:5} runs, {one.uncorrected:6.1%} -> {one.corrected:6.1%}")


def plan_groups(rows: Iterable[Timed]) -> list[list[Pair]]:
    """Measured and estimated seconds of runs that differ in the plan alone."""
    efficiency = default_efficiency()
    found: dict[str, list[Pair]] = {}
    for row in rows:
        if row.family != "fp8":
            found.setdefault(row.group, []).append((row.measured_s, row.seconds(efficiency)))
    return [group[:MOST_ROWS] for group in found.values() if len(group) > 1]


def whole(groups: Sequence[Sequence[Pair]]) -> tuple[float, float]:
    """(without, with a correction by one run): the median over the groups of the median errors."""
    errors = [[_errors(group, place) for place in range(len(group))] for group in groups]
    bare, corrected = (median(median(one[side] for one in group) for group in errors) for side in (0, 1))
    return bare, corrected


def by_distance(groups: Sequence[Sequence[Pair]]) -> list[Line]:
    """The errors by how far the correcting run was off itself."""
    lines = []
    for least, most in pairwise(BOUNDS):
        errors = [
            _errors(group, place) for group in groups for place, (measured, ours) in enumerate(group)
            if least <= abs(log(measured / ours)) < most
        ]  # fmt: skip
        if errors:
            bare, corrected = (median(one[side] for one in errors) for side in (0, 1))
            lines.append(Line(least=least, most=most, runs=len(errors), uncorrected=bare, corrected=corrected))
    return lines


def _errors(group: Sequence[Pair], place: int) -> Pair:
    """Median errors of the others: as estimated, and corrected by the run at `place`."""
    ratio = group[place][0] / group[place][1]
    others = [pair for index, pair in enumerate(group) if index != place]
    bare, corrected = (median(abs(scale * ours / measured - 1) for measured, ours in others) for scale in (1.0, ratio))
    return bare, corrected


if __name__ == "__main__":
    main()
