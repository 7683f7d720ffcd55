"""Lines of steps and heartbeats as rows."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from backend.job.job import Job

RATE = "token_per_sec_per_gpu"
"""What mcore_adapter logs in place of a count of tokens."""

MOST = 1 << 63
"""SQLite keeps smaller integers."""

_log = logging.getLogger(__name__)


def json_rows(data: bytes, *, required: Sequence[str]) -> list[dict[str, Any]]:
    """The JSON objects of complete lines that have the required numbers, finite; others are logged and left out."""
    rows = []
    for line in data.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and all(is_number(row.get(key)) and math.isfinite(row[key]) for key in required):
            rows.append({key: value for key, value in row.items() if key != "protocol"})
        elif line.strip():
            _log.warning("unreadable line of %d bytes left out", len(line))
    return rows


def count_tokens(rows: Sequence[dict[str, Any]], job: Job) -> None:
    """Give steps their tokens over all ranks where the engine tells a rate alone.

    mcore_adapter's rate is of one sequence of every micro-batch on one data-parallel rank, padding counted, since the
    end of the step before (https://github.com/alibaba/ROLL mcore_adapter/src/mcore_adapter/trainer/trainer.py).
    """
    sequences = job.training.micro_batch_size * job.data_parallel * job.sequences_per_sample
    before: Mapping[str, Any] = {}
    for row in rows:
        follows = before.get("step") == row["step"] - 1
        seconds = row["time"] - before["time"] if follows else row.get("step_s")
        if math.isfinite(row.get(RATE, math.nan)) and seconds and not row.get("tokens"):
            row["tokens"] = round(row[RATE] * seconds * sequences)
        before = row


def numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if is_number(value)}


def is_number(value: object) -> bool:
    """Whether the store keeps it: NaN and infinity too."""
    return isinstance(value, float) or (type(value) is int and -MOST <= value < MOST)
