"""Fit the level of step times and the 80 % intervals of memory and time, by whole sources.

    python -m benchmarks.intervals [--write] [--coverage]

--write stores them in presets/intervals.yaml. --coverage prints how many left-out rows are inside, and how wide the
intervals are. The scores are ratios of measured to estimated, of these rows:

- memory: the published rows of the project, and those of strangers.json, whose sources were not used to fit constants;
- time: strangers.json, and the rows of people who fine-tune (USERS), each with constants fitted without its source.

There is an interval for each kind of run: Megatron, and full training, LoRA and QLoRA on Hugging Face's engines. Each
source counts the same, but one with fewer than FULL rows counts less. Rows of other kinds count OTHER_KIND.

The interval lies between two quantiles of the scores. It is the narrowest that holds COVERED of the kind's rows when it
is made without their source, each source counting the same, and OF_STRANGERS of the rows of strangers.json if there are
at least MANY. The level of times is the median over the sources of strangers.json of the median ratio.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from backend.estimate.interval import after_runs
from backend.estimate.time.efficiency import default_efficiency
from benchmarks.errors import Result
from benchmarks.fit import carried_rows
from benchmarks.kinds import MEMORY_KINDS, TIME_KINDS, kind_of, kind_of_time
from benchmarks.left_out import (
    Interval,
    Score,
    calibrated,
    corrected,
    interval,
    left_out,
    level_of,
    levelled,
    share_by_source,
    tail_of,
)
from benchmarks.measured import measured_results
from benchmarks.shapes import DATA
from benchmarks.throughput import left_out_constants
from benchmarks.timed import timed_rows

FAMILIES = ("megatron", "hugging_face")
USERS = ("Qwen fine", "IBM", "ms-swift doc", "Hugging Face blog", "Answer.AI", "torchtune", "XTuner", "NeMo AutoModel")
"""Sources whose authors ran an engine as it is, by the beginning of their names."""
VENDORS = ("SimuMax", "Megatron", "NVIDIA", "Narayanan", "Korthikanti", "NeMo", "Google", "torchtitan")
"""Sources whose authors tuned the stack: it is their own, or their figures promote it."""
OUTPUT = Path(__file__).parents[1] / "presets" / "intervals.yaml"


def main() -> None:
    """Print the intervals, or write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--coverage", action="store_true")
    arguments = parser.parse_args()
    if arguments.coverage:
        print_coverage()
        return
    text = as_yaml(datetime.now(tz=UTC).date().isoformat())
    if arguments.write:
        OUTPUT.write_text(text)
    else:
        print(text)


def print_coverage() -> None:
    """Print the share of left-out rows inside the interval, and its mean width, by family and after corrections."""
    strangers = json.loads((DATA / "strangers.json").read_text())
    users = [score for score in time_scores(carried_rows(), left_out=True) if score.source.startswith(USERS)]
    memory, own_memory = memory_scores(strangers), memory_scores(_published_memory())
    kinds = {"memory": MEMORY_KINDS, "time": TIME_KINDS}
    for name, scores, others in (("memory", memory, own_memory), ("time", time_scores(strangers), users)):
        for kind in kinds[name]:
            tail = tail_of(scores, others, kind, by_level=name == "time")
            held = left_out(scores, others, kind, tail, by_level=name == "time")
            width = statistics.fmean(row.high - row.low for row in held)
            of_strangers = [row.inside for row in held if row.stranger]
            print(
                f"{name:7} {kind:19} {len(held):4} rows, inside {share_by_source(held):.0%}, width {width:.2f}", end=""
            )
            print(f"; strangers {len(of_strangers)}, inside {sum(of_strangers) / max(1, len(of_strangers)):.0%}")
        every = {"all kinds": [*scores, *others]}
        if name == "time":
            every = {family: _of(scores, others, megatron=family == "megatron") for family in FAMILIES}
        for family, runs in product(every, (1, 2, 4)):
            print(f"{name:7} {family:12} after {runs} run(s): {_corrected_coverage(every[family], runs)}")


def _of(strangers: Sequence[Score], others: Sequence[Score], *, megatron: bool) -> list[Score]:
    return [score for score in (*strangers, *others) if (score.kind == "megatron") == megatron]


def _corrected_coverage(scores: Sequence[Score], runs: int) -> str:
    """Return the coverage of the interval after corrections, made without the row's source from single runs."""
    single, errors = corrected(scores), corrected(scores, runs)
    inside = width = 0.0
    for source in {error.source for error in errors}:
        factors = calibrated([error for error in single if error.source != source])
        low, high = after_runs(factors.low, runs), after_runs(factors.high, runs)
        own = [error for error in errors if error.source == source]
        inside += sum(error.weight for error in own if low <= math.exp(error.log) <= high)
        width += sum(error.weight for error in own) * (high - low)
    rows = sum(error.weight for error in errors)
    if not rows:
        return "no rows"
    return f"{rows:.0f} rows, inside {inside / rows:.0%}, width {width / rows:.2f}"


def as_yaml(date: str) -> str:
    """Return the file of intervals."""
    strangers = json.loads((DATA / "strangers.json").read_text())
    memory, own_memory = memory_scores(strangers), memory_scores(_published_memory())
    time, carried = time_scores(strangers), time_scores(carried_rows(), left_out=True)
    users = [score for score in carried if score.source.startswith(USERS)]
    vendors = [score for score in carried if score.source.startswith(VENDORS)]
    level = level_of(time)
    tails = {
        "time": {kind: tail_of(time, users, kind, by_level=True) for kind in TIME_KINDS},
        "memory": {kind: tail_of(memory, own_memory, kind) for kind in MEMORY_KINDS},
    }
    lines = [
        "# The level of step times and the 80 % intervals of estimates, as factors of the estimate.",
        "# Written by: python -m benchmarks.intervals --write, which says how. left_out: the same without that source.",
        f"date: '{date}'",
        f"sources: {len({score.source for score in (*memory, *time)})}",
        f"rows: {len(memory) + len(time)}",
        f"level: {{as_run: {level:.4f}, tuned: 1.0}}",
        "time:",
        *_intervals(levelled(time, level), users, TIME_KINDS, tails["time"]),
        f"  tuned: {_text(interval(vendors, 'megatron', 0.1))}",
        # Corrected times of both engine families differ; for memory, Megatron has too few sources.
        f"  calibrated: {_text(calibrated(corrected(_of(time, users, megatron=False))))}",
        f"  calibrated_megatron: {_text(calibrated(corrected(_of(time, users, megatron=True))))}",
        "memory:",
        *_intervals(memory, own_memory, MEMORY_KINDS, tails["memory"]),
        f"  calibrated: {_text(calibrated(corrected([*memory, *own_memory])))}",
        "left_out:",
    ]
    for source in sorted({score.source for score in (*memory, *time)}):
        without = [score for score in time if score.source != source]
        part = level_of(without)
        rest = [*levelled(without, part), *users]
        entries = [f"level: {part:.4f}"]
        entries += [f"time_{kind}: {_text(interval(rest, kind, tail))}" for kind, tail in tails["time"].items()]
        kept = [score for score in (*memory, *own_memory) if score.source != source]
        entries += [f"memory_{kind}: {_text(interval(kept, kind, tail))}" for kind, tail in tails["memory"].items()]
        lines.append(f"  {json.dumps(source)}: {{{', '.join(entries)}}}")
    return "\n".join(lines) + "\n"


def _intervals(
    strangers: Sequence[Score], others: Sequence[Score], kinds: Iterable[str], tails: Mapping[str, float]
) -> list[str]:
    scores = [*strangers, *others]
    return [f"  {kind}: {_text(interval(scores, kind, tails[kind]))}" for kind in kinds]


def _text(factors: Interval) -> str:
    return f"{{low: {factors.low:.4f}, high: {factors.high:.4f}}}"


def memory_scores(rows: Iterable[Mapping[str, object]]) -> list[Score]:
    """Return the scores of published peaks."""
    results: Sequence[Result] = measured_results(rows)[0]
    return [
        Score(result.source, kind_of(result), math.log(result.measured / result.ours), _model(result.case))
        for result in results
        if result.family
    ]


def time_scores(rows: Iterable[Mapping[str, object]], *, left_out: bool = False) -> list[Score]:
    """Return the scores of published times at the level of a tuned stack; FP8 is not used.

    With `left_out`, each row has the constants that were fitted without its source.
    """
    constants = left_out_constants() if left_out else {}
    scores = []
    for row in timed_rows(rows)[0]:
        if row.family == "fp8" or "vTrain measured" in row.source:
            continue
        seconds = row.seconds(constants.get(row.source, default_efficiency()))
        scores.append(Score(row.source, kind_of_time(row), math.log(row.measured_s / seconds), row.group))
    return scores


def _model(case: str) -> str:
    """Return the model of a case of memory, and whether it trains adapters."""
    return f"{case.partition(' |')[0]} {'lora' in case}"


def _published_memory() -> list[Mapping[str, object]]:
    rows = json.loads((DATA / "published_memory.json").read_text())
    published: list[Mapping[str, object]] = rows["rows"] if isinstance(rows, dict) else rows
    return published


if __name__ == "__main__":
    main()
