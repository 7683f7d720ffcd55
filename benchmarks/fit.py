"""Fit the constants of the time model once, on half of the published runs in the project.

    python -m benchmarks.fit [--write] [--without]

- Half: within a source, groups of rows that differ only in the plan are sorted by name, and every second group is
  taken. So no group is in both halves.
- The weight of a source is the square root of its number of rows.
- Not fitted: FP8 rows (the GPU has another speed); rows with a flag, such as "never fitted" for sources that were added
  later; headers of scripts, whose seconds are rounded.

--write stores constants and errors in presets/efficiency.yaml, and the constants fitted without each source in
benchmarks/data/leave_one_out.json. --without shows how much each constant improves the fit.
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
from backend.job.data_folder import data_folder
from benchmarks.shapes import DATA
from benchmarks.timed import timed_rows
from benchmarks.timed_run import Timed

Vector = npt.NDArray[np.float64]
NAMES = tuple(item.name for item in fields(Efficiency))
NEUTRAL = {"decline": 0.0, "kernel_s": 0.0, "host_s": 0.0, "overlap_share": 0.0}
"""Value of a constant without effect; 1 for a share."""
ROUNDS = 60


def main() -> None:
    """Print constants and errors; store them with --write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--without", action="store_true")
    arguments = parser.parse_args()
    fitted_rows, held_out = halves(fit_rows())
    fitted = fit(fitted_rows)
    print("constants:", {name: float(f"{value:.4g}") for name, value in asdict(fitted).items()})
    for name, value in errors_by_source(fitted, fitted_rows, held_out).items():
        print(f"{name:56} {value}")
    if arguments.without:
        print("\nweighted error on the held-out half without each constant (fitted again):")
        print(f"{'all of them':16} {loss(fitted, held_out):.4f}")
        for name in NAMES:
            print(f"{name:16} {loss(fit(fitted_rows, without=(name,)), held_out):.4f}")
    if arguments.write:
        write(fitted, fitted_rows, held_out)


def carried_rows() -> list[Mapping[str, Any]]:
    """Return every published row in the project."""
    published = json.loads((DATA / "published_throughput.json").read_text())["rows"]
    return [*published, *single_node_rows()]


def single_node_rows() -> list[Mapping[str, Any]]:
    """Return vTrain's single-node runs in the fields of the other published rows."""
    table = json.loads((DATA / "vtrain_single_node.json").read_text())
    rows = []
    for values in table["rows"]:
        row = dict(zip(table["columns"], values, strict=True))
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
    """Return the rows that may be fitted or held out."""
    rows = [row for row in carried_rows() if not row.get("flags") and "header" not in str(row["source"])]
    timed_runs, _ = timed_rows(rows)
    return [timed for timed in timed_runs if timed.family != "fp8"]


def unfitted_rows() -> list[Timed]:
    """Return the rows of sources that were added later and were never fitted."""
    return timed_rows(row for row in carried_rows() if row.get("flags") == "never fitted")[0]


def halves(rows: Sequence[Timed]) -> tuple[list[Timed], list[Timed]]:
    """Return the half that is fitted and the half that is held out."""
    sides: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for source, group in sorted({(row.source, row.group) for row in rows}):
        sides[group] = counts[source] % 2
        counts[source] += 1
    return tuple([row for row in rows if sides[row.group] == side] for side in (0, 1))  # type: ignore[return-value]


def loss(efficiency: Efficiency, rows: Sequence[Timed]) -> float:
    """Return the weighted mean absolute logarithm of estimated over measured time."""
    errors = [abs(math.log(row.seconds(efficiency) / row.measured_s)) for row in rows]
    return float(np.dot(_weights(rows), errors))


def _weights(rows: Sequence[Timed]) -> Vector:
    counts = Counter(row.source for row in rows)
    weights = np.array([1 / math.sqrt(counts[row.source]) for row in rows])
    return weights / weights.sum()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Quick:
    """A row whose schedule is simulated only once. The ratio of the simulated time to the closed form is reused."""

    row: Timed
    ratio: float

    def log_error(self, efficiency: Efficiency) -> float:
        """Return the logarithm of estimated over measured time."""

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
    # A single stage has no schedule (step_time.py).
    return _Quick(row=row, ratio=float(ratios[0]) if ratios else 1.0)


def _closed(forward: ChunkTimes, backward: ChunkTimes, virtual: int, micro_batches: Number) -> Number:
    """Return the time of a pipeline whose stages are equal except for the slowest."""
    stage_times = [sum(chunks[0]) + sum(chunks[1]) for chunks in zip(forward, backward, strict=True)]
    return micro_batches * max(stage_times) + (sum(stage_times) - max(stage_times)) / virtual


def fit(rows: Sequence[Timed], *, without: tuple[str, ...] = (), start: Efficiency | None = None) -> Efficiency:
    """Return the constants with the least weighted absolute logarithm of estimated over measured time.

    Gauss-Newton steps on the logarithms of the constants (log odds for shares). Each step weights rows again by one
    over their error, and is halved until it improves the loss.
    """
    names = [name for name in NAMES if name not in without]
    fixed = {name: NEUTRAL.get(name, 1.0) for name in without}
    start = start or _START
    quick = [_quick(row, start) for row in rows]
    weights = _weights(rows)

    def errors(point: Vector) -> Vector:
        efficiency = Efficiency(**fixed, **{name: _out(name, value) for name, value in zip(names, point, strict=True)})
        return np.array([item.log_error(efficiency) for item in quick])

    point = np.array([_in(name, getattr(start, name)) for name in names])
    point = _descend(errors, point, weights)
    return Efficiency(**fixed, **{name: _out(name, value) for name, value in zip(names, point, strict=True)})


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


def _descend(errors: Callable[[Vector], Vector], point: Vector, weights: Vector) -> Vector:
    now = errors(point)
    for _ in range(ROUNDS):
        slopes = np.stack([(errors(point + step) - now) / 0.02 for step in 0.02 * np.eye(len(point))], axis=1)
        scale = np.sqrt(weights / np.maximum(np.abs(now), 0.02))
        # Damping keeps constants that the rows do not determine close to their last value.
        system = (slopes * scale[:, None]).T @ (slopes * scale[:, None]) + 1e-3 * np.eye(len(point))
        step = -np.linalg.solve(system, (slopes * scale[:, None]).T @ (now * scale))
        step = np.clip(step, -1, 1)
        best, size = float(weights @ np.abs(now)), 1.0
        while size > 0.05:
            shorter = errors(point + size * step)
            if float(weights @ np.abs(shorter)) < best - 1e-6:
                point, now = point + size * step, shorter
                break
            size /= 2
        else:
            return point
    return point


def _in(name: str, value: float) -> float:
    return math.log(value / (1 - value)) if name.endswith("share") else math.log(value)


def _out(name: str, value: float) -> float:
    return 1 / (1 + math.exp(-value)) if name.endswith("share") else math.exp(value)


def errors_by_source(
    efficiency: Efficiency, fitted_rows: Sequence[Timed], held_out: Sequence[Timed]
) -> dict[str, dict[str, float | int]]:
    """Return the median absolute error of each source, on the fitted rows and on the held-out rows."""
    errors_of: dict[str, dict[str, float | int]] = {}
    for source in sorted({row.source for row in (*fitted_rows, *held_out)}):
        for side, rows in (("in_sample", fitted_rows), ("held_out", held_out)):
            errors = [abs(row.seconds(efficiency) / row.measured_s - 1) for row in rows if row.source == source]
            if errors:
                errors_of.setdefault(source, {})[side] = round(statistics.median(errors), 4)
                errors_of[source][f"{side}_rows"] = len(errors)
    return errors_of


def write(fitted: Efficiency, fitted_rows: Sequence[Timed], held_out: Sequence[Timed]) -> None:
    """Store the constants, their errors, and the constants fitted without each source."""
    without = {
        source: fit([row for row in fitted_rows if row.source != source], start=fitted)
        for source in sorted({row.source for row in fitted_rows})
    }
    figures_by_source = {source: _figures(constants) for source, constants in without.items()}
    (DATA / "leave_one_out.json").write_text(json.dumps(figures_by_source, indent=1) + "\n")
    errors = errors_by_source(fitted, fitted_rows, held_out)
    unfitted = unfitted_rows()
    left_out: dict[str, list[float]] = {"dense": [], "moe": []}
    for source, constants in {**without, **{row.source: fitted for row in unfitted}}.items():
        rows = [row for row in (*fitted_rows, *held_out, *unfitted) if row.source == source]
        off = [abs(row.seconds(constants) / row.measured_s - 1) for row in rows]
        errors.setdefault(source, {})["left_out"] = round(statistics.median(off), 4)
        for family, medians in left_out.items():
            of_runs = [error for row, error in zip(rows, off, strict=True) if row.family == family]
            if of_runs and not rows[0].layer_alone:
                medians.append(statistics.median(of_runs))
    figures = {
        "constants": _figures(fitted),
        "typical_error": round(statistics.median(left_out["dense"]), 3),
        "typical_error_of_experts": round(statistics.median(left_out["moe"]), 3),
        "date": datetime.now(tz=UTC).date().isoformat(),
        "rows": {"in_sample": len(fitted_rows), "held_out": len(held_out)},
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
