"""Steps in logs of trainings that somebody else started: LLaMA-Factory's trainer_log.jsonl, Megatron's own lines."""

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


def trainer_log_rows(lines: Sequence[TrainerLine], now: float, before: Before) -> list[Row]:
    """Steps of LLaMA-Factory's trainer_log.jsonl (src/llamafactory/train/callbacks.py, LogCallback.on_log).

    It has no clock but the whole seconds since the start: the newest line counts as written `now`. `before` is what the
    line before the data said, and becomes what the last one says.
    """
    rows = [_of_trainer_log(said) for said in lines if "loss" in said]
    newest = rows[-1]["elapsed"] if rows else 0.0
    for row in rows:
        elapsed = row.pop("elapsed")
        row["time"] = max(0.0, now - max(0.0, newest - elapsed))
        tokens = row.pop("total_tokens")
        steps = row["step"] - before.get("step", 0)
        if before and steps > 0:
            seconds = elapsed - before["elapsed"]
            row |= {"step_s": seconds / steps} if seconds > 0 else {}
            row |= {"tokens": (tokens - before["tokens"]) // steps} if tokens and before["tokens"] else {}
        before |= {"step": row["step"], "elapsed": elapsed, "tokens": tokens}
    return rows


def _of_trainer_log(said: TrainerLine) -> Row:
    row: Row = {
        "step": said["current_steps"],
        "total_steps": said.get("total_steps"),
        "loss": said["loss"],
        "learning_rate": said.get("lr"),
        "epoch": said.get("epoch"),
        "elapsed": _seconds(said.get("elapsed_time", "")),
        "total_tokens": said.get("total_tokens", 0),
    }
    return {key: value for key, value in row.items() if value is not None}


def _seconds(text: str) -> float:
    """`2:03:04` or `1 day, 2:03:04`, as Python writes a timedelta."""
    found = re.fullmatch(r"(?:(\d{1,4}) days?, )?(\d{1,9}):(\d\d):(\d\d)", text)
    days, hours, minutes, seconds = (int(one or 0) for one in found.groups()) if found else (0, 0, 0, 0)
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def megatron_rows(data: bytes, now: float) -> list[Row]:
    """Steps of Megatron-LM's ` iteration N/ M | name: value | ...` (megatron/training/training.py, training_log)."""
    rows: list[Row] = []
    for line in data.splitlines():
        if found := _ITERATION.search(line):
            said, _ = read(MegatronLine, {"step": int(found[1]), "total_steps": int(found[2]), **_values(found[3])})
            rows += [{**said}] if said is not None else []
    left_s = 0.0
    after: Row = {}
    for row in reversed(rows):
        left_s += (after["step"] - row["step"]) * after.get("step_s", 0.0) if after else 0.0
        row["time"] = max(0.0, now - max(0.0, left_s))
        after = row
    return rows


def _values(text: bytes) -> Row:
    row: Row = {}
    for part in text.decode(errors="replace").split("|"):
        name, _, value = part.partition(":")
        key = _MEGATRON.get(name.strip().lower())
        try:
            number = float(value)
        except ValueError:
            continue
        if key == "step_ms":
            row["step_s"] = number / 1000
        elif key:
            row[key] = number
    return row
