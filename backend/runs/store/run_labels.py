"""Tags and notes of runs, and which runs the list hides."""

import json
import sqlite3
from collections.abc import Mapping

from backend.job.problems import Problem, ProblemsError
from backend.runs.records import RunLabels
from backend.runs.store import run_store

MOST_TAGS = 20
LONGEST_TAG = 40
LONGEST_NOTE = 4000
"""In characters."""


def read_all(connection: sqlite3.Connection) -> Mapping[str, RunLabels]:
    """Return run -> labels of the runs that have any."""
    rows = connection.execute("SELECT run, tags, note, is_hidden FROM run_labels")
    return {row["run"]: _labels(row) for row in rows}


def read(connection: sqlite3.Connection, run: str) -> RunLabels:
    """Return the labels of one run."""
    row = connection.execute("SELECT tags, note, is_hidden FROM run_labels WHERE run = ?", (run,)).fetchone()
    return RunLabels() if row is None else _labels(row)


def write(connection: sqlite3.Connection, run: str, labels: RunLabels) -> None:
    """Replace the labels of a run. Raises ProblemsError: unknown_run, tag_unusable, too_many_tags, note_too_long."""
    run_store.run_row(connection, run)
    _check(labels)
    values = (run, json.dumps(labels.tags, ensure_ascii=False), labels.note, labels.is_hidden)
    connection.execute("REPLACE INTO run_labels VALUES (?, ?, ?, ?)", values)


def _check(labels: RunLabels) -> None:
    for tag in labels.tags:
        if not tag or len(tag) > LONGEST_TAG or not tag.isprintable() or "," in tag:
            values = {"tag": tag[: LONGEST_TAG + 1], "limit": LONGEST_TAG}
            raise ProblemsError([Problem(code="tag_unusable", values=values)])
    if len(labels.tags) > MOST_TAGS:
        raise ProblemsError([Problem(code="too_many_tags", values={"limit": MOST_TAGS})])
    if len(labels.note) > LONGEST_NOTE:
        raise ProblemsError([Problem(code="note_too_long", values={"limit": LONGEST_NOTE})])


def _labels(row: sqlite3.Row) -> RunLabels:
    return RunLabels(tags=tuple(json.loads(row["tags"])), note=row["note"], is_hidden=bool(row["is_hidden"]))
