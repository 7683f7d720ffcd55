"""Tokens of steps whose engine reports only a rate."""

from collections.abc import Sequence
from typing import Any

from backend.cluster.typed_json import WHOLE
from backend.job.job import Job

RATE = "token_per_sec_per_gpu"
"""What mcore_adapter logs in place of a count of tokens."""


def count_tokens(rows: Sequence[dict[str, Any]], job: Job) -> None:
    """Give steps their tokens over all ranks where the engine tells a rate alone.

    mcore_adapter's rate is of one sequence of every micro-batch on one data-parallel rank, padding counted, since the
    end of the step before (https://github.com/alibaba/ROLL mcore_adapter/src/mcore_adapter/trainer/trainer.py).
    """
    sequences = job.training.micro_batch_size * job.data_parallel * job.sequences_per_sample
    before: dict[str, Any] = {}
    for row in rows:
        follows = before.get("step") == row["step"] - 1
        seconds = row["time"] - before["time"] if follows else row.get("step_s", 0.0)
        if RATE in row and seconds > 0 and not row.get("tokens"):
            tokens = round(row[RATE] * seconds * sequences)
            row |= {"tokens": tokens} if tokens < WHOLE else {}
        before = row
