"""Reads the steps in the logs of external runs: LLaMA-Factory's trainer_log.jsonl and Megatron's log lines."""

import re
from collections.abc import Sequence
from typing import Any

from backend.cluster.typed_json import read
from backend.runs.collect.node_records import MegatronLine, TrainerLine

Row = dict[str, Any]
Before = dict[str, Any]

_ITERATION = re.compile(rb"\biteration\s+(\d{1,18})/\s*(\d{1,18}) \|(.*)")
_MEGATRON = {
    "elapsed time per iteration (ms)": "step_ms",
    "learning rate": "learning_rate",
    "lm loss": "loss",
    "loss": "loss",
    "grad norm": "grad_norm",
}


_TRAINER = ("current_steps", "total_steps", "loss", "lr", "epoch", "percentage", "total_tokens")
"""Numbers of trainer_log.jsonl with a place of their own, and the share of steps that are done."""


def with_metrics(line: Any) -> Any:
    """Return a line of trainer_log.jsonl with its other numbers as `metrics`, whatever their names."""
    if not isinstance(line, dict):
        return line
    numbers = {
        name: value
        for name, value in line.items()
        if name not in _TRAINER and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {**line, "metrics": numbers}


def trainer_log_rows(lines: Sequence[TrainerLine], now: float, before: Before) -> list[Row]:
    """Return the steps of LLaMA-Factory's trainer_log.jsonl (src/llamafactory/train/callbacks.py, LogCallback.on_log).

    An evaluation has only `metrics`. The log's only clock is the number of whole seconds since the start, so the newest
    line counts as written `now`. `before` holds the values of the line before the data, and is updated to those of the
    last line.
    """
    rows = [_of_trainer_log(line) for line in lines if "loss" in line or line.get("metrics")]
    newest = rows[-1]["elapsed"] if rows else 0.0
    for row in rows:
        elapsed = row.pop("elapsed")
        row["time"] = max(0.0, now - max(0.0, newest - elapsed))
        if "loss" not in row:  # an evaluation: its line is no step
            kept = {key: row[key] for key in ("step", "time", "metrics")}
            row.clear()
            row |= kept
            continue
        tokens = row.pop("total_tokens")
        steps = row["step"] - before.get("step", 0)
        if before and steps > 0:
            seconds = elapsed - before["elapsed"]
            row |= {"step_s": seconds / steps} if seconds > 0 else {}
            row |= {"tokens": (tokens - before["tokens"]) // steps} if tokens and before["tokens"] else {}
        before |= {"step": row["step"], "elapsed": elapsed, "tokens": tokens}
    return rows


def _of_trainer_log(line: TrainerLine) -> Row:
    row: Row = {
        "step": line["current_steps"],
        "total_steps": line.get("total_steps"),
        "loss": line.get("loss"),
        "metrics": line.get("metrics") or None,
        "learning_rate": line.get("lr"),
        "epoch": line.get("epoch"),
        "elapsed": _seconds(line.get("elapsed_time", "")),
        "total_tokens": line.get("total_tokens", 0),
    }
    return {key: value for key, value in row.items() if value is not None}


def _seconds(text: str) -> float:
    """Return the seconds of `2:03:04` or `1 day, 2:03:04`, the form in which Python writes a timedelta."""
    match = re.fullmatch(r"(?:(\d{1,4}) days?, )?(\d{1,9}):(\d\d):(\d\d)", text)
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups()) if match else (0, 0, 0, 0)
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def megatron_rows(data: bytes, now: float) -> list[Row]:
    """Return the steps of Megatron-LM's ` iteration N/ M | name: value | ...` (megatron/training/training.py,
    training_log).
    """
    rows: list[Row] = []
    for line in data.splitlines():
        if match := _ITERATION.search(line):
            step, _ = read(MegatronLine, {"step": int(match[1]), "total_steps": int(match[2]), **_values(match[3])})
            rows += [{**step}] if step is not None else []
    left_s = 0.0
    after: Row = {}
    for row in reversed(rows):
        left_s += (after["step"] - row["step"]) * after.get("step_s", 0.0) if after else 0.0
        row["time"] = max(0.0, now - max(0.0, left_s))
        after = row
    return rows


def _values(text: bytes) -> Row:
    row: Row = {}
    for field in text.decode(errors="replace").split("|"):
        name, _, value = field.partition(":")
        key = _MEGATRON.get(name.strip().lower())
        try:
            number = float(value)
        except ValueError:  # a field of text
            continue
        if key == "step_ms":
            row["step_s"] = number / 1000
        elif key:
            row[key] = number
        elif name.strip():
            row.setdefault("metrics", {})[name.strip()] = number
    return row
