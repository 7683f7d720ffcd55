"""Accuracy of times that are corrected by one measured run, on published runs that differ only in the plan.

    python -m benchmarks.calibration [--json] [--write]

A group has the runs of one source, model and GPU. Each run in turn corrects the estimates of the others: the factor is
its measured time over its estimated time. The table shows the median absolute errors with and without the correction,
by the error of the correcting run itself. FP8 rows are left out.

--write stores the median over all groups in presets/calibration.yaml. The page shows it as the error of calibrated
times.
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
from backend.job.data_folder import data_folder
from benchmarks.fit import carried_rows
from benchmarks.timed import timed_rows
from benchmarks.timed_run import Timed

BOUNDS = (0.0, 0.05, 0.1, 0.2, 0.4, float("inf"))
"""Bounds of the absolute logarithm of measured over estimated time."""
MOST_ROWS = 150
"""Limit for each group: the number of pairs grows with the square."""

Pair = tuple[float, float]
"""(measured, estimated) seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Correcting runs with an error in one range, and the median errors of the other plans."""

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
    uncorrected, corrected = median_errors(groups)
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
        print(
            json.dumps({"uncorrected": uncorrected, "corrected": corrected, "lines": [asdict(line) for line in lines]})
        )
        return
    print(f"{len(groups)} groups: median error {uncorrected:.1%} uncorrected, {corrected:.1%} corrected by one run")
    for line in lines:
        off = f"{line.least:.0%} to {line.most:.0%}"
        print(f"{off:>12} off: {line.runs:5} runs, {line.uncorrected:6.1%} -> {line.corrected:6.1%}")


def plan_groups(rows: Iterable[Timed]) -> list[list[Pair]]:
    """Return measured and estimated seconds of groups of runs that differ only in the plan."""
    efficiency = default_efficiency()
    by_plan_group: dict[str, list[Pair]] = {}
    for row in rows:
        if row.family != "fp8":
            by_plan_group.setdefault(row.group, []).append((row.measured_s, row.seconds(efficiency)))
    return [group[:MOST_ROWS] for group in by_plan_group.values() if len(group) > 1]


def median_errors(groups: Sequence[Sequence[Pair]]) -> tuple[float, float]:
    """Return the median over the groups of the median errors: (uncorrected, corrected by one run)."""
    errors = [[_errors(group, index) for index in range(len(group))] for group in groups]
    bare, corrected = (median(median(pair[side] for pair in pairs) for pairs in errors) for side in (0, 1))
    return bare, corrected


def by_distance(groups: Sequence[Sequence[Pair]]) -> list[Line]:
    """Return the errors by the error of the correcting run itself."""
    lines = []
    for least, most in pairwise(BOUNDS):
        errors = [
            _errors(group, index) for group in groups for index, (measured, ours) in enumerate(group)
            if least <= abs(log(measured / ours)) < most
        ]  # fmt: skip
        if errors:
            bare, corrected = (median(pair[side] for pair in errors) for side in (0, 1))
            lines.append(Line(least=least, most=most, runs=len(errors), uncorrected=bare, corrected=corrected))
    return lines


def _errors(group: Sequence[Pair], index: int) -> Pair:
    """Return the median errors of the other runs: (uncorrected, corrected by the run at `index`)."""
    ratio = group[index][0] / group[index][1]
    others = [pair for other, pair in enumerate(group) if other != index]
    bare, corrected = (median(abs(scale * ours / measured - 1) for measured, ours in others) for scale in (1.0, ratio))
    return bare, corrected


if __name__ == "__main__":
    main()
