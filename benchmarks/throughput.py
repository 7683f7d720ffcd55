"""Error of the step time on published runs, by source, compared with one constant MFU, and quality of the ranking.

    python -m benchmarks.throughput [--measured FILE] [--json]

The default rows are those in the project, with vTrain's single-node runs. --json prints for each source {rows, skipped:
{reason: count}, mean, median, p90, max, baseline_median, in_sample_median, held_out_median, left_out_median,
dense_median, moe_median, fp8_median, bf16_median, bf16_baseline_median, bf16_mean, bf16_baseline_mean,
bf16_baseline_rows: [rows behind each constant of the baseline], flops_error, covered_80, width_80, ranking: {groups,
kendall_tau}}. Errors
are absolute fractions of the seconds of a step.

- The baseline knows the answer: it is the median MFU of the same rows, by source, GPU and precision.
- in_sample and held_out are the halves of benchmarks/fit.py. Rows of other files are in neither.
- left_out is the error with constants that were fitted without that source.
- MoE and FP8 rows count in a source's figures and are also shown apart. FP8 was never fitted.
"""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from backend.estimate.time.efficiency import Efficiency, default_efficiency, level_on
from backend.job.presets import intervals
from benchmarks.errors import Result, Skip, coverage, summary
from benchmarks.fit import carried_rows, fit_rows, halves
from benchmarks.kinds import kind_of_time
from benchmarks.shapes import DATA
from benchmarks.timed import timed_rows
from benchmarks.timed_run import Timed

WORST = 5
FEWEST_PLANS = 3
"""Minimum number of plans in a group whose ranking counts."""


def main() -> None:
    """Print the table, or the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = carried_rows()
    if arguments.measured:
        read = json.loads(arguments.measured.read_text())
        rows = read["rows"] if isinstance(read, Mapping) else read
    timed, skips = timed_rows(rows)
    by_source = figures(timed, skips)
    if arguments.json:
        print(json.dumps(by_source, indent=1))
        return
    _print(by_source, timed)


def figures(timed: Sequence[Timed], skips: Iterable[Skip]) -> dict[str, dict[str, Any]]:
    """Return the errors, their baselines and the ranking quality of each source."""
    efficiency = default_efficiency()
    seconds = {id(row): level_of_run(row) * row.seconds(efficiency) for row in timed}
    baselines = _baselines(timed)
    results = [
        Result(
            source=row.source,
            case=row.case,
            measured=row.measured_s,
            ours=seconds[id(row)],
            baseline=row.flops * row.tokens / row.time_context.machine.peak / baselines[row.baseline_group],
        )
        for row in timed
    ]
    by_source = summary(results, skips)
    without = left_out_constants()
    fitted, held_out = (_cases(side) for side in halves(fit_rows()))
    for source, entry in by_source.items():
        own_rows = [row for row in timed if row.source == source]
        errors = {id(row): abs(seconds[id(row)] / row.measured_s - 1) for row in own_rows}
        for name, side in (("in_sample", fitted), ("held_out", held_out)):
            entry[f"{name}_median"] = _median(errors[id(row)] for row in own_rows if (source, row.case) in side)
        entry["left_out_median"] = _without_source(own_rows, without.get(source))
        for family in ("dense", "moe", "fp8"):
            entry[f"{family}_median"] = _median(errors[id(row)] for row in own_rows if row.family == family)
        plain = {row.case for row in own_rows if row.family != "fp8"}
        bf16 = [errors[id(row)] for row in own_rows if row.family != "fp8"]
        bf16_baseline = [
            abs(result.baseline / result.measured - 1)
            for result in results
            if result.source == source and result.case in plain
        ]
        entry["bf16_median"], entry["bf16_baseline_median"] = _median(bf16), _median(bf16_baseline)
        sizes = Counter(row.baseline_group for row in own_rows if row.family != "fp8")
        entry["bf16_baseline_rows"] = sorted(sizes.values(), reverse=True)
        entry["bf16_mean"], entry["bf16_baseline_mean"] = _mean(bf16), _mean(bf16_baseline)
        entry["flops_error"] = _median(row.flops_error for row in own_rows if row.flops_error is not None)
        entry["ranking"] = _ranking(own_rows, seconds)
        entry |= coverage((row.measured_s / seconds[id(row)], time_interval_of(row)) for row in own_rows)
    return by_source


def _cases(rows: Iterable[Timed]) -> set[tuple[str, str]]:
    return {(row.source, row.case) for row in rows}


def _baselines(rows: Iterable[Timed]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.baseline_group, []).append(row.mfu)
    return {group: statistics.median(values) for group, values in groups.items()}


def level_of_run(run: Timed) -> float:
    """Return the level of a run, without its source if that is known; 1 for the sources of the constants."""
    known = intervals()
    if run.source in _tuned_sources():
        return 1.0
    level = float(known.left_out.get(run.source, {}).get("level", known.level["as_run"]))
    return level_on(run.time_context.machine, level)


@cache
def _tuned_sources() -> frozenset[str]:
    """Return the sources whose rows the constants and formulas were made with. Their level is in the constants."""
    return frozenset(row.source for row in timed_rows(carried_rows())[0])


def time_interval_of(row: Timed) -> tuple[float, float]:
    """Return the factors of a row's time, without its source if that is known."""
    known, kind = intervals(), kind_of_time(row)
    if row.source in _tuned_sources():
        factors = known.time["tuned"]
        return factors.low, factors.high
    entry = known.left_out.get(row.source, {}).get(f"time_{kind}")
    return (entry["low"], entry["high"]) if entry else (known.time[kind].low, known.time[kind].high)


def left_out_constants() -> dict[str, Efficiency]:
    by_source = json.loads((DATA / "leave_one_out.json").read_text())
    return {source: Efficiency(**values) for source, values in by_source.items()}


def _without_source(rows: Iterable[Timed], efficiency: Efficiency | None) -> float | None:
    if efficiency is None:
        return None
    return _median(abs(row.seconds(efficiency) / row.measured_s - 1) for row in rows if row.family != "fp8")


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _median(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return statistics.median(numbers) if numbers else None


def plan_groups(rows: Iterable[Timed]) -> list[list[Timed]]:
    """Return the groups of at least FEWEST_PLANS rows that differ only in the plan."""
    groups: dict[str, list[Timed]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return [group for group in groups.values() if len({row.plan_key for row in group}) >= FEWEST_PLANS]


def _ranking(rows: Iterable[Timed], seconds: Mapping[int, float]) -> dict[str, float | int | None]:
    taus = [
        kendall_tau([row.measured_s for row in group], [seconds[id(row)] for row in group])
        for group in plan_groups(rows)
    ]
    return {"groups": len(taus), "kendall_tau": statistics.fmean(taus) if taus else None}


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's tau: pairs in the same order minus pairs in the opposite order, over all pairs."""
    pairs = list(combinations(range(len(first)), 2))
    signs = [_sign(first[a] - first[b]) * _sign(second[a] - second[b]) for a, b in pairs]
    return sum(signs) / len(pairs)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _print(by_source: Mapping[str, Mapping[str, Any]], timed: Sequence[Timed]) -> None:
    names = ("median", "p90", "max", "baseline_median", "in_sample_median", "held_out_median", "left_out_median")
    print(f"{'source':54} {'rows':>5} " + " ".join(f"{name.removesuffix('_median'):>9}" for name in names) + "  tau")
    for source, entry in by_source.items():
        numbers = " ".join(f"{entry[name]:9.1%}" if entry.get(name) is not None else f"{'-':>9}" for name in names)
        tau = entry["ranking"]["kendall_tau"]
        print(f"{source:54.54} {entry['rows']:5} {numbers}  {'-' if tau is None else f'{tau:.2f}'}")
        families = {
            key: entry[f"{key}_median"] for key in ("dense", "moe", "fp8") if entry[f"{key}_median"] is not None
        }
        if len(families) > 1 or "fp8" in families:
            print(f"{'':8}" + ", ".join(f"{key} {value:.1%}" for key, value in families.items()))
        if "fp8" in families and len(families) > 1:
            print(
                f"{'':8}16 bits {entry['bf16_median']:.1%}, mean {entry['bf16_mean']:.1%}; baseline"
                f" {entry['bf16_baseline_median']:.1%}, mean {entry['bf16_baseline_mean']:.1%},"
                f" each constant from so many rows: {entry['bf16_baseline_rows']}"
            )
        if entry["flops_error"] is not None:
            print(f"{'':8}FLOPs of a token {entry['flops_error']:.2%} off, median")
        for reason, count in sorted(entry["skipped"].items(), key=lambda item: -item[1]):
            print(f"{'':8}skipped {count:4}: {reason}")
    groups = [entry["ranking"] for entry in by_source.values() if entry["ranking"]["groups"]]
    if groups:
        total = sum(group["groups"] for group in groups)
        mean = sum(group["groups"] * group["kendall_tau"] for group in groups) / total
        print(f"\nKendall tau over {total} groups of at least {FEWEST_PLANS} plans: {mean:.2f}")
    efficiency = default_efficiency()
    print("\nfurthest off:")
    for row in sorted(timed, key=lambda row: -abs(row.seconds(efficiency) / row.measured_s - 1))[: 3 * WORST]:
        ours = level_of_run(row) * row.seconds(efficiency)
        print(
            f"{ours / row.measured_s - 1:+8.1%} {row.measured_s:9.3f} s {ours:9.3f} s  {row.source:.30} {row.case[:80]}"
        )


if __name__ == "__main__":
    main()
