"""Number of tokens of a step whose engine reports only a rate."""

from collections.abc import Sequence
from typing import Any

from backend.cluster.typed_json import WHOLE
from backend.job.job import Job

RATE = "token_per_sec_per_gpu"
"""The value that mcore_adapter logs instead of a count of tokens."""


def count_tokens(rows: Sequence[dict[str, Any]], job: Job) -> None:
    """Compute the tokens of steps over all ranks where the engine reports only a rate.

    The rate of mcore_adapter is that of one sequence of every micro-batch on one data-parallel rank. It counts padding,
    and its time begins at the end of the previous step (https://github.com/alibaba/ROLL
    mcore_adapter/src/mcore_adapter/trainer/trainer.py).
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
