"""Fits the time model's constants once, on half of the published runs that the project carries.

    python -m benchmarks.fit [--write] [--without]

Half: within a source, groups of rows that differ only in the plan are sorted by name and every other one is taken, so
that no group is on both sides. Every source weighs as the square root of its rows. Out of the fit stay: FP8 (another
speed of the GPU), rows flagged by whoever collected them, among them sources that came later and were only ever
estimated ("never fitted"), and headers of scripts, whose seconds are rounded. --write
keeps constants and errors in presets/efficiency.yaml, and the constants fitted without each source in
benchmarks/data/leave_one_out.json; --without shows what each constant is worth.
"""

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from backend.estimate.array_ops import Number
from backend.estimate.time.efficiency import Efficiency
from backend.estimate.time.schedule import iteration_time
from backend.estimate.time.step_time import ChunkTimes
from backend.job.presets import data_folder
from benchmarks.shapes import DATA
from benchmarks.timed import timed_rows
from benchmarks.timed_run import Timed

Vector = npt.NDArray[np.float64]
NAMES = tuple(item.name for item in fields(Efficiency))
NEUTRAL = {"decline": 0.0, "kernel_s": 0.0, "host_s": 0.0, "overlap_share": 0.0}
"""What a constant is when it is not there; a share is then 1."""
ROUNDS = 60


def main() -> None:
    """Print constants and errors, and with --write keep them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--without", action="store_true")
    arguments = parser.parse_args()
    seen, held = halves(fit_rows())
    found = fit(seen)
    print("constants:", {name: float(f"{value:.4g}") for name, value in asdict(found).items()})
    for name, value in errors_by_source(found, seen, held).items():
        print(f"{name:56} {value}")
    if arguments.without:
        print("\nweighted error on the held half without each constant (fitted again):")
        print(f"{'all of them':16} {loss(found, held):.4f}")
        for name in NAMES:
            print(f"{name:16} {loss(fit(seen, without=(name,)), held):.4f}")
    if arguments.write:
        write(found, seen, held)


def carried_rows() -> list[Mapping[str, Any]]:
    """Every published row that the project carries."""
    published = json.loads((DATA / "published_throughput.json").read_text())["rows"]
    return [*published, *single_node_rows()]


def single_node_rows() -> list[Mapping[str, Any]]:
    """vTrain's single-node runs in the form of the others."""
    found = json.loads((DATA / "vtrain_single_node.json").read_text())
    rows = []
    for values in found["rows"]:
        row = dict(zip(found["columns"], values, strict=True))
        arch = {"hidden": row["hidden"], "layers": row["layers"], "heads": row["heads"]}
        sizes = {key: row[key] for key in ("gpus", "gbs", "mbs", "seq", "tp", "dp", "pp")}
        rows.append(
            {
                "source": "vTrain measured single-node",
                "model": f"GPT {arch['hidden']} x {arch['layers']} x {arch['heads']}",
                "model_arch": arch,
                "hardware": "A100-80GB",
                "precision": "fp16",
                "recompute": "full",
                "zero": 0,
                "measured_iter_s": row["milliseconds"] / 1e3,
                **sizes,
            }
        )
    return rows


def fit_rows() -> list[Timed]:
    """Those of the carried rows that may be fitted to or held out."""
    rows = [row for row in carried_rows() if not row.get("flags") and "header" not in str(row["source"])]
    found, _ = timed_rows(rows)
    return [timed for timed in found if timed.family != "fp8"]


def unfitted_rows() -> list[Timed]:
    """Those of sources that came later and were only ever estimated."""
    found, _ = timed_rows(row for row in carried_rows() if row.get("flags") == "never fitted")
    return found


def halves(rows: Sequence[Timed]) -> tuple[list[Timed], list[Timed]]:
    """The half that is fitted to, and the half that is held out."""
    places: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for source, group in sorted({(row.source, row.group) for row in rows}):
        places[group] = counts[source] % 2
        counts[source] += 1
    return tuple([row for row in rows if places[row.group] == side] for side in (0, 1))  # type: ignore[return-value]


def loss(efficiency: Efficiency, rows: Sequence[Timed]) -> float:
    """Mean absolute logarithm of ours over measured, sources weighted."""
    errors = [abs(math.log(row.seconds(efficiency) / row.measured_s)) for row in rows]
    return float(np.dot(_weights(rows), errors))


def _weights(rows: Sequence[Timed]) -> Vector:
    counts = Counter(row.source for row in rows)
    weights = np.array([1 / math.sqrt(counts[row.source]) for row in rows])
    return weights / weights.sum()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Quick:
    """A row whose schedule is not simulated again and again: the simulated time over the closed form's is kept."""

    row: Timed
    ratio: float

    def log_error(self, efficiency: Efficiency) -> float:
        """Logarithm of ours over measured."""

        def schedule(forward: ChunkTimes, backward: ChunkTimes, virtual: int, micro_batches: Number) -> Number:
            return self.ratio * _closed(forward, backward, virtual, micro_batches)

        return math.log(self.row.seconds(efficiency, schedule) / self.row.measured_s)


def _quick(row: Timed, efficiency: Efficiency) -> _Quick:
    ratios = []

    def schedule(forward: ChunkTimes, backward: ChunkTimes, virtual: int, micro_batches: Number) -> Number:
        exact = iteration_time(forward, backward, virtual, micro_batches)
        ratios.append(exact / _closed(forward, backward, virtual, micro_batches))
        return exact

    row.seconds(efficiency, schedule)
    return _Quick(row=row, ratio=float(ratios[0]))


def _closed(forward: ChunkTimes, backward: ChunkTimes, virtual: int, micro_batches: Number) -> Number:
    """Equal stages but for the slowest."""
    both = [sum(there) + sum(back) for there, back in zip(forward, backward, strict=True)]
    return micro_batches * max(both) + (sum(both) - max(both)) / virtual


def fit(rows: Sequence[Timed], *, without: tuple[str, ...] = (), start: Efficiency | None = None) -> Efficiency:
    """Constants with the least weighted absolute logarithm of ours over measured.

    Gauss-Newton steps on the logarithms of the constants (of odds for shares), rows weighted again by one over their
    error, steps halved until they help.
    """
    names = [name for name in NAMES if name not in without]
    fixed = {name: NEUTRAL.get(name, 1.0) for name in without}
    start = start or _START
    quick = [_quick(row, start) for row in rows]
    weights = _weights(rows)

    def errors(place: Vector) -> Vector:
        efficiency = Efficiency(**fixed, **{name: _out(name, value) for name, value in zip(names, place, strict=True)})
        return np.array([item.log_error(efficiency) for item in quick])

    place = np.array([_in(name, getattr(start, name)) for name in names])
    place = _descend(errors, place, weights)
    return Efficiency(**fixed, **{name: _out(name, value) for name, value in zip(names, place, strict=True)})


_START = Efficiency(
    product_share=0.95,
    attention_share=0.5,
    flash_attention_share=0.55,
    decline=0.1,
    kernel_s=2e-5,
    host_s=4e-5,
    link_share=0.8,
    network_share=0.7,
    overlap_share=0.8,
)


def _descend(errors: Callable[[Vector], Vector], place: Vector, weights: Vector) -> Vector:
    now = errors(place)
    for _ in range(ROUNDS):
        slopes = np.stack([(errors(place + step) - now) / 0.02 for step in 0.02 * np.eye(len(place))], axis=1)
        scale = np.sqrt(weights / np.maximum(np.abs(now), 0.02))
        # A little damping keeps constants in place that the rows do not tell.
        system = (slopes * scale[:, None]).T @ (slopes * scale[:, None]) + 1e-3 * np.eye(len(place))
        step = -np.linalg.solve(system, (slopes * scale[:, None]).T @ (now * scale))
        step = np.clip(step, -1, 1)
        best, size = float(weights @ np.abs(now)), 1.0
        while size > 0.05:
            tried = errors(place + size * step)
            if float(weights @ np.abs(tried)) < best - 1e-6:
                place, now = place + size * step, tried
                break
            size /= 2
        else:
            return place
    return place


def _in(name: str, value: float) -> float:
    return math.log(value / (1 - value)) if name.endswith("share") else math.log(value)


def _out(name: str, value: float) -> float:
    return 1 / (1 + math.exp(-value)) if name.endswith("share") else math.exp(value)


def errors_by_source(
    efficiency: Efficiency, seen: Sequence[Timed], held: Sequence[Timed]
) -> dict[str, dict[str, float | int]]:
    """Median absolute error of each source, in the sample and held out."""
    found: dict[str, dict[str, float | int]] = {}
    for source in sorted({row.source for row in (*seen, *held)}):
        for side, rows in (("in_sample", seen), ("held_out", held)):
            errors = [abs(row.seconds(efficiency) / row.measured_s - 1) for row in rows if row.source == source]
            if errors:
                found.setdefault(source, {})[side] = round(statistics.median(errors), 4)
                found[source][f"{side}_rows"] = len(errors)
    return found


def write(found: Efficiency, seen: Sequence[Timed], held: Sequence[Timed]) -> None:
    """Keep the constants, their errors, and the constants fitted without each source."""
    without = {
        source: fit([row for row in seen if row.source != source], start=found)
        for source in sorted({row.source for row in seen})
    }
    kept = {source: _figures(constants) for source, constants in without.items()}
    (DATA / "leave_one_out.json").write_text(json.dumps(kept, indent=1) + "\n")
    errors = errors_by_source(found, seen, held)
    strange = unfitted_rows()
    left_out: dict[str, list[float]] = {"dense": [], "moe": []}
    for source, constants in {**without, **{row.source: found for row in strange}}.items():
        rows = [row for row in (*seen, *held, *strange) if row.source == source]
        off = [abs(row.seconds(constants) / row.measured_s - 1) for row in rows]
        errors.setdefault(source, {})["left_out"] = round(statistics.median(off), 4)
        for family, medians in left_out.items():
            of_runs = [error for row, error in zip(rows, off, strict=True) if row.family == family]
            if of_runs and not rows[0].layer_alone:
                medians.append(statistics.median(of_runs))
    figures = {
        "constants": _figures(found),
        "typical_error": round(statistics.median(left_out["dense"]), 3),
        "typical_error_of_experts": round(statistics.median(left_out["moe"]), 3),
        "date": datetime.now(tz=UTC).date().isoformat(),
        "rows": {"in_sample": len(seen), "held_out": len(held)},
        "errors": errors,
    }
    text = "# The constants of the time model: backend/estimate/time/efficiency.py says what each is.\n"
    text += "# Written by: python -m benchmarks.fit --write. typical_error: the median, over the sources, of the\n"
    text += "# median absolute error on a source's dense models where it was not fitted to, as a user's cluster\n"
    text += "# is; typical_error_of_experts: the same on its mixtures of experts.\n"
    text += yaml.safe_dump(figures, sort_keys=False, width=120)
    (data_folder("presets") / "efficiency.yaml").write_text(text)


def _figures(constants: Efficiency) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in asdict(constants).items()}


if __name__ == "__main__":
    main()
