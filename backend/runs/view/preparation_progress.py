"""Progress of the data preparation before the ranks start, from the output of the node that prepares the data."""

import re
import sqlite3

from backend.runs.records import Preparing, PreparingStage
from backend.runs.store import metrics
from backend.runs.store.metrics import FileKey

TAIL_BYTES = 16 << 10
"""More than the output between two states of a progress bar: a sample, and the tokenizer's configuration."""
READY = b"megaboard: the data is ready"
_STAGES: dict[str, PreparingStage] = {
    "Generating": "reading", "Converting": "converting", "Running tokenizer": "tokenising", "Saving": "saving"
}  # fmt: skip
# tqdm's bars as `datasets` 4.0 makes them: "Running tokenizer on dataset (num_proc=16):  35%|###  | 350/1000 [...]",
# and without a known end "Generating train split: 512 examples [...]".
_BAR = re.compile(rf"({'|'.join(_STAGES)})[^\r\n:]*:\s+(?:\d+%\|[^|\r\n]*\|\s*)?(\d{{1,15}})(?:/(\d{{1,15}}))?")


def preparing(connection: sqlite3.Connection, run: str, attempt: int) -> Preparing | None:
    """Return the newest progress of an attempt's preparation; None without one, or once the data is ready."""
    key = FileKey(run=run, attempt=attempt, rank=0, file="out.log")
    return read_progress(metrics.log_tail(connection, key, size=TAIL_BYTES)[1])


def read_progress(log: bytes) -> Preparing | None:
    """Return the last progress bar in the end of a log."""
    if READY in log:
        return None
    bars = _BAR.findall(log.decode(errors="replace"))
    if not bars:
        return Preparing(stage="starting")
    name, done, total = bars[-1]
    return Preparing(stage=_STAGES[name], done=int(done), total=int(total) if total else None)
