"""Fit the level of step times and the 80 % intervals of memory and time, by whole sources.

    python -m benchmarks.intervals [--write] [--coverage]

--write stores them in presets/intervals.yaml. --coverage prints how many left-out rows are inside, and how wide the
intervals are. The scores are ratios of measured to estimated, of these rows:

- memory: the published rows of the project, and those of strangers (STRANGERS), whose sources were not used to fit
  constants;
- time: strangers, the project's own runs on a GPU (own_h200.json), and the rows of people who fine-tune (USERS), each
  with constants fitted without its source.

There is an interval for each kind of run: full training and LoRA on Megatron (one for times), and full training, LoRA
and QLoRA on Hugging Face's engines. Each source counts the same, but one with fewer than FULL rows counts less. Rows of
other kinds count OTHER_KIND. Those of memory differ by what is known of the lengths of samples (by_lengths.py).

After a correction by one run, the interval is that of rows that one other row of the same model, length, method and
hardware corrects; it holds 80 % of such rows of each kind when it is made without their source. It is never wider than
the interval without a run: memory on Megatron differs as much between two runs of a source as between sources. After
several runs, its width follows from their scatter (backend.estimate.interval.after_runs).

Times in FP8 have an interval of the project's rows in FP8: 94 are NVIDIA's, 10 torchtitan's, 2 MosaicML's. The rows of
strangers in FP8 are in no interval.

The interval lies between two quantiles of the scores. It is the narrowest that holds COVERED of the kind's rows when it
is made without their source, each source counting the same, and OF_STRANGERS of the rows of strangers if there are at
least MANY. Each source has a median ratio. The level of times is the median of these, over the sources of strangers and
the own runs.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from backend.estimate.interval import LENGTHS
from backend.estimate.time.efficiency import default_efficiency, relief
from backend.job.presets import Interval
from benchmarks.by_lengths import Tails, by_lengths, left_out_by_lengths, tails_of
from benchmarks.errors import Result
from benchmarks.fit import carried_rows
from benchmarks.fits import STRANGERS, published_rows
from benchmarks.kinds import MEMORY_KINDS, TIME_KINDS, kind_of, kind_of_time
from benchmarks.left_out import (
    Held,
    Score,
    corrected,
    interval,
    left_out,
    left_out_corrected,
    level_of,
    levelled,
    share_by_source,
    share_of_rows,
    tail_of,
    tail_of_corrected,
    weight_of,
)
from benchmarks.measured import measured_results
from benchmarks.shapes import DATA
from benchmarks.throughput import left_out_constants
from benchmarks.timed import timed_rows

USERS = ("Qwen fine", "IBM", "ms-swift doc", "Hugging Face blog", "Answer.AI", "torchtune", "XTuner", "NeMo AutoModel")
"""Sources whose authors ran an engine as it is, by the beginning of their names."""
VENDORS = ("SimuMax", "Megatron", "NVIDIA", "Narayanan", "Korthikanti", "NeMo", "Google", "torchtitan")
"""Sources whose authors tuned the stack: it is their own, or their figures promote it."""
RUNS = (1, 2, 3, 4, 6)
"""Runs after which the coverage is printed."""
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
    strangers = rows_of_strangers()
    users = [score for score in time_scores(carried_rows(), left_out=True) if score.source.startswith(USERS)]
    memory, own_memory = memory_scores(strangers), memory_scores(published_rows("published_memory.json"))
    fp8 = fp8_scores()
    print(f"time    fp8                 {_shares(left_out([], fp8, 'fp8', tail_of([], fp8, 'fp8')))}")
    for kind in MEMORY_KINDS:
        of_lengths = left_out_by_lengths(memory, own_memory, kind, tails_of(memory, own_memory, kind))
        for lengths, rows in of_lengths.items():
            print(f"memory  {kind:19} lengths {lengths:8} {_shares(rows)}")
        _print_kind("memory", kind, [row for rows in of_lengths.values() for row in rows])
    times = time_scores([*strangers, *own_runs()])
    for kind in TIME_KINDS:
        tail = tail_of(times, users, kind, by_level=True)
        _print_kind("time", kind, left_out(times, users, kind, tail, by_level=True))
    for name, every, kinds in (
        ("memory", [*memory, *own_memory], MEMORY_KINDS),
        ("time", [*_of_others(times), *users], TIME_KINDS),
    ):
        for kind, runs in product(kinds, RUNS):
            held = left_out_corrected(every, kind, tail_of_corrected(every, kind), runs)
            print(f"{name:7} {kind:19} after {runs} run(s): {_shares(held)}")


def _print_kind(name: str, kind: str, held: Sequence[Held]) -> None:
    of_strangers = [row.inside for row in held if row.stranger]
    share = sum(of_strangers) / max(1, len(of_strangers))
    print(f"{name:7} {kind:19} {_shares(held)}; strangers {len(of_strangers)}, inside {share:.0%}")


def _shares(held: Sequence[Held]) -> str:
    rows = weight_of(held)
    if not rows:
        return "no rows"
    width = sum(row.weight * (row.high - row.low) for row in held) / rows
    by_source, by_row = share_by_source(held), share_of_rows(held)
    return f"{rows:4.0f} rows, inside {by_source:.0%} ({by_row:.0%} of the rows), width {width:.2f}"


def as_yaml(date: str) -> str:
    """Return the file of intervals."""
    strangers = rows_of_strangers()
    memory, own_memory = memory_scores(strangers), memory_scores(published_rows("published_memory.json"))
    time, carried = time_scores([*strangers, *own_runs()]), time_scores(carried_rows(), left_out=True)
    users = [score for score in carried if score.source.startswith(USERS)]
    vendors = [score for score in carried if score.source.startswith(VENDORS)]
    fp8 = fp8_scores()
    level = level_of(time)
    tails = {
        "time": {kind: tail_of(time, users, kind, by_level=True) for kind in TIME_KINDS},
    }
    memory_tails = {kind: tails_of(memory, own_memory, kind) for kind in MEMORY_KINDS}
    scores = [*levelled(time, level), *users]
    times = {kind: interval(scores, kind, tails["time"][kind]) for kind in TIME_KINDS}
    memories = dict(_of_memory([*memory, *own_memory], memory_tails))
    lines = [
        "# The level of step times and the 80 % intervals of estimates, as factors of the estimate.",
        "# Written by: python -m benchmarks.intervals --write, which says how. left_out: the same without that source.",
        f"date: '{date}'",
        f"sources: {len({score.source for score in (*memory, *_of_others(time))})}",
        f"rows: {len(memory) + len(_of_others(time))}",
        f"level: {{as_run: {level:.4f}, tuned: 1.0}}",
        "time:",
        *(f"  {kind}: {_text(factors)}" for kind, factors in times.items()),
        f"  tuned: {_text(interval(vendors, 'megatron', 0.1))}",
        f"  fp8: {_text(interval(fp8, 'fp8', tail_of([], fp8, 'fp8')))}",
        *_calibrated([*_of_others(time), *users], times),
        "memory:",
        *(f"  {name}: {_text(factors)}" for name, factors in memories.items()),
        *_calibrated([*memory, *own_memory], {kind: memories[kind] for kind in MEMORY_KINDS}),
        "left_out:",
    ]
    for source in sorted({score.source for score in (*memory, *time)}):
        without = [score for score in time if score.source != source]
        part = level_of(without)
        rest = [*levelled(without, part), *users]
        entries = [f"level: {part:.4f}"]
        entries += [f"time_{kind}: {_text(interval(rest, kind, tail))}" for kind, tail in tails["time"].items()]
        kept = [score for score in (*memory, *own_memory) if score.source != source]
        entries += [f"memory_{name}: {_text(factors)}" for name, factors in _of_memory(kept, memory_tails)]
        lines.append(f"  {json.dumps(source)}: {{{', '.join(entries)}}}")
    return "\n".join(lines) + "\n"


def _of_memory(scores: Sequence[Score], tails: Mapping[str, Tails]) -> Iterator[tuple[str, Interval]]:
    """Yield the intervals of memory with their names."""
    for kind, of_kind in tails.items():
        for lengths, factors in by_lengths(scores, kind, of_kind).items():
            yield f"{LENGTHS[lengths]}{kind}", factors


def _calibrated(scores: Sequence[Score], uncorrected: Mapping[str, Interval]) -> list[str]:
    """Return the lines of the intervals after a correction by one run, cut to those without one."""
    errors, lines = corrected(scores), []
    for kind, bounds in uncorrected.items():
        factors = interval(errors, kind, tail_of_corrected(scores, kind))
        cut = Interval(low=max(factors.low, bounds.low), high=min(factors.high, bounds.high))
        lines.append(f"  calibrated_{kind}: {_text(cut)}")
    return lines


def _text(factors: Interval) -> str:
    return f"{{low: {factors.low:.4f}, high: {factors.high:.4f}}}"


def memory_scores(rows: Iterable[Mapping[str, object]]) -> list[Score]:
    """Return the scores of published peaks."""
    scores, cases = [], set()
    for row in rows:
        results: Sequence[Result] = measured_results([row])[0]
        for result in results:
            if result.family and (result.source, result.case) not in cases:
                cases.add((result.source, result.case))
                log = math.log(result.measured / result.ours)
                unknown = result.unknown_lengths
                scores.append(Score(result.source, kind_of(result), log, _training(row), unknown_lengths=unknown))
    return scores


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
        log, eased = math.log(row.measured_s / seconds), relief(row.time_context.machine)
        scores.append(Score(row.source, kind_of_time(row), log, row.group, relief=eased))
    return scores


def fp8_scores() -> list[Score]:
    """Return the scores of the project's rows in FP8, none of which was fitted to, at the level of a tuned stack."""
    return [
        Score(row.source, "fp8", math.log(row.measured_s / row.seconds(default_efficiency())), row.group)
        for row in timed_rows(carried_rows())[0]
        if row.family == "fp8"
    ]


def rows_of_strangers() -> list[Mapping[str, object]]:
    """Return the rows of sources that no constant was made with."""
    return [row for name in STRANGERS for row in published_rows(name)]


def own_runs() -> list[Mapping[str, object]]:
    """Return the project's own runs on a GPU. Their memory is no score, so that it stays a test."""
    rows: list[Mapping[str, object]] = json.loads((DATA / "own_h200.json").read_text())
    return rows


def _of_others(scores: Iterable[Score]) -> list[Score]:
    """Return the scores without the own runs. Two differ in Liger: one cannot correct the other."""
    own = {str(row["source"]) for row in own_runs()}
    return [score for score in scores if score.source not in own]


def _training(row: Mapping[str, object]) -> str:
    """Return the model, the hardware and the length of a row of memory."""
    return f"{row['model']} {row.get('hardware')} {row.get('seq')}"


if __name__ == "__main__":
    main()
