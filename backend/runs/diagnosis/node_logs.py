"""The logs of one node of an attempt, and a problem with the lines that show it."""

import re
import sqlite3
from collections.abc import Mapping

from backend.job.problems import Problem
from backend.runs.collect.log_text import readable
from backend.runs.diagnosis import log_causes
from backend.runs.records import NodeRecord
from backend.runs.store import metrics
from backend.runs.store.metrics import FileKey

TAIL_BYTES = 128 << 10
"""Bytes read of the end of each log. A cause may stand before a traceback, and other output after it."""
RANK_LOG = re.compile(r"rank(?P<rank>\d+)\.log")
ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?rank\s*:\s*(?P<rank>\d+)", re.DOTALL)


def logs_of(connection: sqlite3.Connection, run: str, attempt: int, rank: int) -> dict[str, str]:
    """Return the ends of a node's logs: first that of the rank that torchrun blames, last the node's console."""
    texts = {}
    for file in metrics.log_files(connection, run, attempt, rank):
        key = FileKey(run=run, attempt=attempt, rank=rank, file=file)
        texts[file] = readable(metrics.log_tail(connection, key, size=TAIL_BYTES)[1])
    blamed = ROOT_CAUSE.search(texts.get("out.log", ""))
    first = f"rank{blamed['rank']}.log" if blamed else ""
    order = sorted(texts, key=lambda file: (file == "out.log", file != first, file))
    return {file: texts[file] for file in order}


def problem_of(code: str, record: NodeRecord, logs: Mapping[str, str], **values: object) -> Problem:
    """Return a problem of a node, with the last lines of these logs of it."""
    file, lines = log_causes.last_lines(logs)
    details = {"node": record.address, "rank": record.rank, "file": file, "lines": lines, **values}
    return Problem(code=code, node=record.address, values=details)
