"""The lines of FOLDER/steps.rank<k>.jsonl. entry.py and swift_entry.py write them.

One line per optimizer step. Rank 0 adds the key `metrics`: every number that the trainer logs, by its name. Numbers
that are logged after the line of their step, such as those of an evaluation, get a line of their own with the same
step.
"""

from __future__ import annotations

import json
import time
from typing import IO, Any

PROTOCOL = 1
FIELDS = ("loss", "grad_norm", "learning_rate", "token_per_sec_per_gpu")
"""Logged values that are fields of a step's line."""
_NO_METRICS = (*FIELDS, "epoch")
MOST_NAMES = 512
"""Most numbers in one line."""


class StepLines:
    """Writes the lines of one rank. Trainers end a step, then log it."""

    def __init__(self, file: IO[str], rank: int) -> None:
        self.file = file
        self.rank = rank
        self.row: dict[str, Any] | None = None
        self.metrics: dict[int, dict[str, float]] = {}
        self.is_in_step = False

    def begin_step(self) -> None:
        """Write what is left of the step before."""
        self.write()
        self.is_in_step = True

    def end_step(self, row: dict[str, Any], *, is_logged: bool) -> None:
        """Take the line of a step. `is_logged`: the trainer may log the step, and the line waits for it."""
        self.row = {"protocol": PROTOCOL, **row}
        self.is_in_step = False
        if not is_logged:
            self.write()

    def log(self, step: int, logs: Any) -> None:
        """Take what a trainer, or a callback of the user, logs at a step."""
        numbers = numbers_of(logs or {})
        has_loss = "loss" in numbers
        if self.row and has_loss:
            self.row.update({name: numbers[name] for name in FIELDS if name in numbers})
        others = {name: value for name, value in numbers.items() if name not in _NO_METRICS}
        if others and self.rank == 0:
            self.metrics.setdefault(step, {}).update(others)
        # A line of only metrics must not come before the line of its step: older servers keep the first one.
        if not self.is_in_step and (has_loss or self.row is None):
            self.write()

    def write(self) -> None:
        """Write the waiting lines."""
        row, metrics = self.row, self.metrics
        self.row, self.metrics = None, {}
        lines = []
        for step, values in metrics.items():
            kept = dict(list(values.items())[:MOST_NAMES])
            if row and row["step"] == step:
                row["metrics"] = kept
            else:
                lines.append({"protocol": PROTOCOL, "step": step, "time": time.time(), "metrics": kept})
        if row:
            lines.append(row)
        if lines:
            self.file.write("".join(json.dumps(line) + "\n" for line in lines))
            self.file.flush()


def numbers_of(logs: Any) -> dict[str, float]:
    """Return the values that are one number: Python's, numpy's, or a tensor of one element."""
    numbers = {}
    for name, value in logs.items():
        if not isinstance(name, str) or value is None or isinstance(value, (str, bytes, bool)):
            continue
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            continue  # a list, a histogram or an image
    return numbers
