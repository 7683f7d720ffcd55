"""A database of an older version is migrated with all of its data. If that fails, it stays as it was."""

import json
import sqlite3
from pathlib import Path

import pytest

from backend.runs.states import EventKind, RunState
from backend.runs.store import metrics, run_store, store
from backend.runs.store.metrics import FileKey
from backend.runs.store.schema import MIGRATIONS
from backend.runs.store.store import Store, StoreError
from backend.runs.view import snapshot

RUN = "20260101-000000-old-aaaa"
JOB = "version: 1\nname: old\ncluster: {gpu: cpu, nodes: 1, gpus_per_node: 1}\nengine: llamafactory-ddp\n"

# What version 1 wrote of a run that has finished, and of one that trains on; only the columns that it had.
HISTORY = (
    ("INSERT INTO draft VALUES (1, ?, 5)", ("name: draft\n",)),
    ("INSERT INTO runs (id, name, engine, job, created, ended) VALUES (?, 'old', 'e', ?, 10, 90)", (RUN, JOB)),
    ("INSERT INTO runs (id, name, engine, job, created) VALUES ('live', 'live', 'e', ?, 20)", (JOB,)),
    ("INSERT INTO claims VALUES ('10.0.0.2', 'live')", ()),
    *(
        (
            "INSERT INTO attempts (run, attempt, created, master_address, master_port, rendered)"
            " VALUES (?, 1, 11, 'm', 1, ?)",
            (run, json.dumps({"files": {"config.yaml": "a: 1\n"}, "commands": [["py"]], "environment": [{}]})),
        )
        for run in (RUN, "live")
    ),
    (
        "INSERT INTO nodes (run, attempt, rank, address, folder, python, mark, clock_offset_s, exit)"
        " VALUES (?, 1, 0, '10.0.0.1', '/r', '/py', 'm.0', 0.5, ?)",
        (RUN, json.dumps({"code": 0, "stopped": False, "left": [], "time": 80})),
    ),
    *(
        ("INSERT INTO events (run, attempt, kind, time, detail) VALUES (?, 1, ?, ?, '{}')", (RUN, kind, time))
        for time, kind in enumerate(("created", "preflight", "starting", "started", "finished"), 10)
    ),
    *(
        ("INSERT INTO events (run, attempt, kind, time, detail) VALUES ('live', 1, ?, 30, '{}')", (kind,))
        for kind in ("created", "preflight", "starting", "started")
    ),
    *(
        ("INSERT INTO points (run, attempt, rank, step, time, loss) VALUES (?, 1, 0, ?, ?, ?)", (RUN, n, n, 5 - n))
        for n in (1, 2, 3)
    ),
    ("INSERT INTO log_chunks VALUES (?, 1, 0, 'out.log', 0, 0, ?)", (RUN, b"it trained\n")),
    ("INSERT INTO offsets VALUES (?, 1, 0, 'out.log', 0, 11, x'00')", (RUN,)),
    ("INSERT INTO heartbeats VALUES (?, 1, 0, 50, 51, '{\"load1\": 2.5}')", (RUN,)),
)


@pytest.fixture(params=range(1, len(MIGRATIONS) + 1))
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the database file of that version."""
    path = tmp_path / "megaboard.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    for statement in (item for step in MIGRATIONS[: request.param] for item in step):
        connection.execute(statement)
    for statement, values in HISTORY:
        connection.execute(statement, values)
    connection.execute(f"PRAGMA user_version = {request.param}")
    connection.commit()
    connection.close()
    return path


def test_everything_of_an_older_version_is_there_and_can_go_on(old: Path) -> None:
    for _ in range(2):  # The second call has nothing to do.
        opened = Store(old)
        assert opened.get_draft() == "name: draft\n"
        with opened.read() as connection:
            assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            shown = snapshot.snapshot(connection, RUN, now=100.0)
            assert (shown.state, shown.step, shown.loss, shown.ended) == (RunState.FINISHED, 3, 2, 90)
            assert (shown.nodes[0].state, shown.nodes[0].host) == ("finished", {"load1": 2.5})
            assert [point.step for point in metrics.points(connection, RUN)] == [1, 2, 3]
            key = FileKey(run=RUN, attempt=1, rank=0, file="out.log")
            assert metrics.log_tail(connection, key, size=100)[1] == b"it trained\n"
            assert run_store.unfinished_runs(connection) == ["live"]
            assert run_store.state_of(connection, "live") is RunState.RUNNING
            rendered = connection.execute("SELECT rendered FROM attempts WHERE run = ?", (RUN,)).fetchone()[0]
            assert json.loads(rendered)["files"] == {"config.yaml": "a: 1\n"}
            assert len(snapshot.summaries(connection, {}, 0.0)) == 2
        opened.close()
    opened = Store(old)
    assert opened.write(lambda c: run_store.append(c, "live", EventKind.STOP_REQUESTED, time=200.0))
    assert opened.write(lambda c: run_store.append(c, "live", EventKind.STOPPED, time=201.0))
    with pytest.raises(StoreError, match="append-only"):
        opened.write(lambda c: c.execute("DELETE FROM events"))
    opened.close()


def test_an_upgrade_that_fails_half_way_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dump(old)
    broken = (*MIGRATIONS, ("CREATE TABLE more (x)", "DELETE FROM points", "ALTER TABLE none ADD COLUMN y"))
    with monkeypatch.context() as patch:
        patch.setattr(store, "MIGRATIONS", broken)
        with pytest.raises(StoreError, match="no such table: none"):
            Store(old)
    assert dump(old) == before
    Store(old).close()


def dump(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    lines = [str(version), *connection.iterdump()]
    connection.close()
    return lines
