"""Error of the memory estimate on published measurements, by source, compared with a simple rule.

    python -m benchmarks.memory [--measured FILE] [--golden FILE] [--json] [--write FILE]

The default files are those in the project. --json prints {source: {rows, skipped: {reason: count}, mean, median, p90,
max, baseline_median, covered_80: rows inside their 80 % interval, width_80: its mean width}}; errors are absolute
fractions. --write presets/accuracy.yaml stores the figures of each engine
family and kind of run for the page.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backend.estimate.interval import LENGTHS
from backend.job.presets import intervals
from benchmarks.errors import Result, Skip, by_group, coverage, summary
from benchmarks.golden import golden_results, within_tolerance
from benchmarks.kinds import kind_of, lengths_of
from benchmarks.measured import measured_results
from benchmarks.shapes import DATA

WORST = 5


def main() -> None:
    """Print the table, or the summary as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", type=Path, default=DATA / "published_memory.json", metavar="FILE")
    parser.add_argument("--golden", type=Path, default=DATA / "megatron_golden.json", metavar="FILE")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    results, skips, constants = evaluate(arguments.measured, arguments.golden)
    by_source = summary(results, skips)
    for source, entry in by_source.items():
        own = [result for result in results if result.source == source and result.family]
        entry |= coverage((result.measured / result.ours, interval_of(result)) for result in own)
    if arguments.write:
        arguments.write.write_text(_as_yaml(results, datetime.now(tz=UTC).date().isoformat()))
    if arguments.json:
        print(json.dumps(by_source, indent=1))
        return
    _print(by_source, results)
    print(f"\nstatic bytes within 20 MiB + 1%: {within_tolerance(results):.1%}")
    print("MiB added per environment:", {name: round(value, 1) for name, value in constants.items()})


def interval_of(result: Result) -> tuple[float, float]:
    """Return the factors of the memory of a run, without its source if that is known."""
    known, kind = intervals(), f"{LENGTHS[lengths_of(result)]}{kind_of(result)}"
    entry = known.left_out.get(result.source, {}).get(f"memory_{kind}")
    return (entry["low"], entry["high"]) if entry else (known.memory[kind].low, known.memory[kind].high)


def evaluate(measured: Path, golden: Path) -> tuple[list[Result], list[Skip], dict[str, float]]:
    """Return results and skips of both files, and the golden file's constants in MiB."""
    rows = json.loads(measured.read_text())
    results, skips = measured_results(rows["rows"] if isinstance(rows, dict) else rows)
    readings = json.loads(golden.read_text())
    readings = readings["rows"] if isinstance(readings, dict) else readings
    golden_errors, golden_skips, constants = golden_results(readings)
    return [*results, *golden_errors], [*skips, *golden_skips], constants


def _as_yaml(results: Sequence[Result], date: str) -> str:
    """Return the errors of each engine family and kind of run as YAML."""
    lines = [
        "# How far the memory estimate was off on published runs, by engine family and kind of run.",
        "# Errors are absolute fractions.",
        "# Written by: python -m benchmarks.memory --write presets/accuracy.yaml",
    ]
    for group, figures in by_group(results).items():
        numbers = ", ".join(f"{key}: {figures[key]:.4f}" for key in ("mean", "median", "p90", "max"))
        lines.append(f"{group}: {{rows: {figures['rows']}, {numbers}, date: '{date}'}}")
    return "\n".join(lines) + "\n"


def _print(by_source: Mapping[str, Mapping[str, Any]], results: Sequence[Result]) -> None:
    print(f"{'source':56} {'rows':>5} {'mean':>7} {'median':>7} {'p90':>7} {'max':>7} {'18 B rule':>9}")
    for source, figures in by_source.items():
        if figures["rows"]:
            numbers = " ".join(f"{figures[key]:7.2%}" for key in ("mean", "median", "p90", "max"))
            print(f"{source:56} {figures['rows']:5} {numbers} {figures['baseline_median']:9.1%}")
        else:
            print(f"{source:56}     0")
        for reason, count in sorted(figures["skipped"].items(), key=lambda item: -item[1]):
            print(f"{'':8}skipped {count:4}: {reason}")
        worst = sorted((item for item in results if item.source == source), key=lambda item: -abs(item.error))
        for item in worst[:WORST]:
            print(f"{'':8}{item.error:+8.2%} {item.measured:8.2f} {item.ours:8.2f}  {item.case[:130]}")


if __name__ == "__main__":
    main()
