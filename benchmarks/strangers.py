"""Errors on published runs of strangers, by source.

    python -m benchmarks.strangers [FILE ...] [--json]

FILE has rows in the form of benchmarks/data/strangers.json; the default is the project's files (benchmarks.fits
STRANGERS). For each source: rows, median absolute error, median signed error, and the rows inside the 80 % interval.
The level of times and the interval of a source of these files were made without it. The total of a table is the mean of
the medians of the sources, weighted by their rows. `refused` counts runs that ran although the estimate says that they
do not fit (benchmarks/fits.py).

To try the estimates on new sources: collect rows in a new file, run this program once, and only then look at the
causes.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from backend.estimate.time.efficiency import default_efficiency
from benchmarks.fits import STRANGERS, verdicts
from benchmarks.measured import measured_results
from benchmarks.memory import interval_of
from benchmarks.shapes import DATA
from benchmarks.throughput import level_of_run, time_interval_of
from benchmarks.timed import timed_rows


class Error(NamedTuple):
    """The error of one row: estimated over measured, minus one."""

    source: str
    value: float
    inside: bool


def main() -> None:
    """Print the tables of memory and time, or the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", default=[DATA / name for name in STRANGERS])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tables = figures(row for file in arguments.files for row in json.loads(file.read_text()))
    if arguments.json:
        print(json.dumps(tables, indent=1))
        return
    for name in ("memory", "time"):
        print(f"{name:56} rows  median    bias  inside")
        for source, entry in (*tables[name]["sources"].items(), ("all", tables[name]["all"])):
            print(f"{source:56} {entry['rows']:4} {entry['median']:7.1%} {entry['bias']:+7.1%} {entry['inside']:5}")
    print(f"said not to fit, but ran: {tables['refused']} of {tables['judged']}")


def figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tables of memory and time, and the verdicts about runs that ran."""
    listed = list(rows)
    judged = verdicts(listed)
    return {
        "memory": _table(memory_errors(listed)),
        "time": _table(time_errors(listed)),
        "judged": judged.rows,
        "refused": judged.refused,
    }


def memory_errors(rows: Iterable[Mapping[str, Any]]) -> list[Error]:
    """Return the errors of peaks."""
    errors = []
    for result in measured_results(rows)[0]:
        if result.family:
            low, high = interval_of(result)
            inside = low <= result.measured / result.ours <= high
            errors.append(Error(result.source, result.ours / result.measured - 1, inside))
    return errors


def time_errors(rows: Iterable[Mapping[str, Any]]) -> list[Error]:
    """Return the errors of the seconds of a step, at the level of stacks that users run."""
    errors = []
    for run in timed_rows(rows)[0]:
        ours = level_of_run(run) * run.seconds(default_efficiency())
        low, high = time_interval_of(run)
        errors.append(Error(run.source, ours / run.measured_s - 1, low <= run.measured_s / ours <= high))
    return errors


def _table(errors: list[Error]) -> dict[str, Any]:
    by_source: dict[str, list[Error]] = {}
    for error in errors:
        by_source.setdefault(error.source, []).append(error)
    sources = {source: _entry(of_source) for source, of_source in by_source.items()}
    weighted = sum(entry["rows"] * entry["median"] for entry in sources.values()) / len(errors)
    return {"sources": sources, "all": _entry(errors) | {"median": weighted}}


def _entry(errors: list[Error]) -> dict[str, Any]:
    return {
        "rows": len(errors),
        "median": statistics.median(abs(error.value) for error in errors),
        "bias": statistics.median(error.value for error in errors),
        "inside": sum(error.inside for error in errors),
    }


if __name__ == "__main__":
    main()
