"""Deletes ended runs from the store, with a record that stays.

One transaction writes the record (deleted_runs) and deletes the run's own row. From then on no page shows the run, and
nothing can write to it. Short transactions delete the rest, so that live collection continues. If the server is killed
meanwhile, it continues the deletion at its next start. Nothing on the nodes is touched.
"""

import json
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from backend.job.problems import Problem, ProblemsError
from backend.runs.collect import flight_records
from backend.runs.states import RunState
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.store import Store
from backend.runs.supervise.reaper import unproved_nodes

ROWS, BLOB_ROWS = 5000, 64
"""Rows deleted in one transaction, and rows with log bytes, which hold up to a megabyte each."""
RECORDS = "deleted_runs"

By = Literal["page", "command", "rule"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """The record of a deleted run."""

    run: str
    name: str
    engine: str
    created: float
    ended: float | None
    state: str
    step: int | None
    """The newest step of rank 0."""
    deleted: float
    by: By
    row_counts: Mapping[str, int]
    """Table -> rows of the run that were deleted."""
    archive: str | None = None
    """The file that holds the deleted data; None without an archive."""
    sha256: str | None = None
    """SHA-256 of the archive."""
    cleared: float | None = None
    """When the last row was deleted; None during the deletion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Archived:
    """The archive of a run and the number of rows in it."""

    path: str
    sha256: str
    row_counts: Mapping[str, int]


def run_tables(connection: sqlite3.Connection) -> list[str]:
    """Return the tables with a column `run`, each before the tables that it refers to."""
    rows = connection.execute(
        "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c"
        " WHERE m.type = 'table' AND c.name = 'run' AND m.name <> ? ORDER BY m.name",
        (RECORDS,),
    )
    tables = [str(row["name"]) for row in rows]
    parents = {
        table: {row["table"] for row in connection.execute(f"PRAGMA foreign_key_list({table})")} for table in tables
    }
    ordered: list[str] = []
    while tables:
        free = [table for table in tables if not any(table in parents[other] for other in tables if other != table)]
        ordered += free or tables
        tables = [table for table in tables if table not in ordered]
    return ordered


def count_rows(connection: sqlite3.Connection, run: str) -> dict[str, int]:
    """Return table -> rows of a run, without empty tables."""
    counts = {"runs": connection.execute("SELECT count(*) FROM runs WHERE id = ?", (run,)).fetchone()[0]}
    for table in run_tables(connection):
        counts[table] = connection.execute(f"SELECT count(*) FROM {table} WHERE run = ?", (run,)).fetchone()[0]  # noqa: S608
    return {table: count for table, count in counts.items() if count}


def refuse_unless_over(connection: sqlite3.Connection, run: str, *, proofs_since: float) -> RunState:
    """Return the final state of a run that may be deleted.

    Raises ProblemsError: unknown_run, run_deleted, run_archived, run_unreadable, run_not_over, run_not_proved. A run
    that ended after `proofs_since` needs a proof of each node that no process is left.
    """
    run_store.run_row(connection, run)
    state = run_store.state_of(connection, run)
    if state is None or not state.is_final:
        raise ProblemsError([Problem(code="run_not_over", values={"run": run})])
    unproved = sorted({node.rank for node in unproved_nodes(connection, proofs_since, run=run)})
    if unproved:
        values = {"run": run, "nodes": ", ".join(map(str, unproved))}
        raise ProblemsError([Problem(code="run_not_proved", values=values)])
    return state


def begin(
    connection: sqlite3.Connection,
    run: str,
    *,
    now: float,
    by: By,
    proofs_since: float,
    archived: Archived | None = None,
) -> Deleted:
    """Record the deletion of a run and delete the run's own row. Needs Store.write(orphans=True).

    Raises ProblemsError as refuse_unless_over, and run_changed if the number of the run's rows changed since it was
    archived.
    """
    state = refuse_unless_over(connection, run, proofs_since=proofs_since)
    row = run_store.run_row(connection, run)
    counts = count_rows(connection, run)
    if archived is not None and counts != archived.row_counts:
        raise ProblemsError([Problem(code="run_changed", values={"run": run})])
    newest = metrics.trail(connection, run, attempts.newest(connection, run), count=1)
    tokens = [launch["token"] for launch in connection.execute("SELECT token FROM launches WHERE run = ?", (run,))]
    record = Deleted(
        run=run,
        name=row["name"],
        engine=row["engine"],
        created=row["created"],
        ended=row["ended"],
        state=state.value,
        step=newest[-1].step if newest else None,
        deleted=now,
        by=by,
        row_counts=counts,
        archive=archived.path if archived else None,
        sha256=archived.sha256 if archived else None,
    )
    _insert(connection, record, tokens)
    connection.execute("DELETE FROM runs WHERE id = ?", (run,))
    return record


def _insert(connection: sqlite3.Connection, record: Deleted, tokens: Sequence[str]) -> None:
    row = {**asdict(record), "tokens": json.dumps(tokens), "row_counts": json.dumps(record.row_counts)}
    columns, places = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(f"INSERT INTO deleted_runs ({columns}) VALUES ({places})", row)  # noqa: S608


def clear(store: Store, home: Path, run: str, *, now: float) -> None:
    """Delete the rest of a run whose deletion is recorded: its rows, and the flight records beside the store."""
    while store.write(lambda connection: _delete_some(connection, run)):
        pass
    folder = flight_records.folder_of(home, run, 0).parent
    if folder.name == run and folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    store.write(
        lambda c: c.execute("UPDATE deleted_runs SET cleared = ? WHERE run = ? AND cleared IS NULL", (now, run))
    )


def unfinished(connection: sqlite3.Connection) -> list[str]:
    """Return the runs whose deletion is recorded but not finished."""
    return [
        row["run"] for row in connection.execute("SELECT run FROM deleted_runs WHERE cleared IS NULL ORDER BY deleted")
    ]


def deleted_runs(connection: sqlite3.Connection) -> list[Deleted]:
    """Return the records of all deleted runs, newest first."""
    rows = connection.execute("SELECT * FROM deleted_runs ORDER BY deleted DESC, run")
    return [_deleted(row) for row in rows]


def _delete_some(connection: sqlite3.Connection, run: str) -> bool:
    """Delete the first rows; return whether there were any."""
    for table in run_tables(connection):
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        limit = BLOB_ROWS if any(column["type"] == "BLOB" and column["name"] == "data" for column in columns) else ROWS
        key = _key(connection, table, columns)
        cursor = connection.execute(
            f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE run = ? LIMIT ?)",  # noqa: S608
            (run, limit),
        )
        if cursor.rowcount:
            return True
    return False


def _key(connection: sqlite3.Connection, table: str, columns: list[sqlite3.Row]) -> str:
    """Return the key of a table's rows: `rowid`, or the primary key if it has none."""
    try:
        connection.execute(f"SELECT rowid FROM {table} LIMIT 0")  # noqa: S608
    except sqlite3.OperationalError:
        return ", ".join(column["name"] for column in columns if column["pk"])
    return "rowid"


def _deleted(row: sqlite3.Row) -> Deleted:
    values: dict[str, Any] = {name: row[name] for name in Deleted.__dataclass_fields__}
    return Deleted(**{**values, "row_counts": json.loads(row["row_counts"])})
