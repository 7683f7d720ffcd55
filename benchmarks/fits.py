"""How often "fits" and "does not fit" are wrong about published runs on GPUs of a known size.

    python -m benchmarks.fits [--json]

All of these runs really ran. A row's interval comes from the other sources where presets/intervals.yaml has that. The
figure of a row is what its source measured (allocated, reserved or of nvidia-smi), and the estimate is of the same.

- refused: the whole interval is above the GPU memory, so the page would have said "does not fit";
  (The estimate knows the GPU: torch returns gaps before it fails. That holds for the page, too.)
- full: the upper bound is below the GPU memory ("fits"), but the measured peak came within NEAR of it.
"""

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from benchmarks.errors import UNREADABLE
from benchmarks.measured import measured_results
from benchmarks.measured_hugging_face import gpu_gib
from benchmarks.memory import interval_of
from benchmarks.shapes import DATA

NEAR = 0.02
STRANGERS = ("strangers.json", "more_strangers.json")
"""Rows of sources that no constant was made with. The level of times and the intervals are."""
FILES = (*STRANGERS, "published_memory.json")


class Verdicts(NamedTuple):
    """Counts of rows of one file."""

    rows: int
    """With an estimate and a GPU whose size is known."""
    refused: int
    fits: int
    full: int
    """Of `fits`."""


def main() -> None:
    """Print the counts and shares of each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    files = {name: verdicts(published_rows(name)) for name in FILES}
    if as_json:
        print(json.dumps({name: counts._asdict() for name, counts in files.items()}, indent=1))
        return
    for name, counts in files.items():
        print(f"{name:24} {counts.rows} rows, refused {counts.refused} ({counts.refused / counts.rows:.1%}), ", end="")
        print(f"fits {counts.fits}, full {counts.full} ({counts.full / counts.fits:.1%})")


def published_rows(name: str) -> list[Mapping[str, Any]]:
    """Return the rows of one of the project's files."""
    data = json.loads((DATA / name).read_text())
    return data["rows"] if isinstance(data, dict) else data  # type: ignore[no-any-return]


def verdicts(rows: Iterable[Mapping[str, Any]]) -> Verdicts:
    """Return how often the verdicts about the rows are wrong."""
    count = refused = fits = full = 0
    for row in rows:
        memory_gib = _known_gib(row)
        for result in measured_results([row])[0]:
            if result.family is None or not memory_gib:
                continue
            low, high = interval_of(result)
            count += 1
            refused += result.ours * low > memory_gib
            if result.ours * high < memory_gib:
                fits += 1
                full += result.measured >= (1 - NEAR) * memory_gib
    return Verdicts(count, refused, fits, full)


def _known_gib(row: Mapping[str, Any]) -> float:
    """Return the memory of the row's GPU; 0 if it is not known."""
    try:
        memory_gib = gpu_gib(row)
    except UNREADABLE:
        return 0
    return memory_gib if math.isfinite(memory_gib) else 0


if __name__ == "__main__":
    main()
