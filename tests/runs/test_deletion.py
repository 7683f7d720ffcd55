"""A deleted run leaves nothing but the record of its deletion, and everything else stays as it was."""

import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.web.audit import Audit
from backend.job.problems import ProblemsError
from backend.runs import emergency_stop
from backend.runs.collect import flight_records
from backend.runs.launch.launch_lock import launch_lock
from backend.runs.retention import Retention
from backend.runs.states import EventKind
from backend.runs.store import deletion, queue_order, run_store
from backend.runs.store.backup import back_up, backup_path
from backend.runs.store.store import Store, StoreError
from backend.runs.supervise.reaper import FORGOTTEN_AFTER_S
from backend.runs.view import snapshot
from tests.clock import Clock
from tests.full_disk import full_disk
from tests.waiting import wait_for
from tools.stored_runs import StoredRun

NOW = 1_800_000_000.0
RUN = "20270115-080000-tiny-aaaa"


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW + 1000)


@pytest.fixture
def retention(store: Store, home: Path, clock: Clock) -> Retention:
    return Retention(home, store, clock=clock, audit=Audit(home, clock).record)


def finished(store: Store, run: str = RUN, *, name: str = "tiny", nodes: int = 2, ends: bool = True) -> StoredRun:
    """A run with rows in every table; `ends`: it has finished, with its proof."""
    made = StoredRun(store, run, now=NOW, name=name, nodes=nodes)
    made.start()
    made.steps(1, 20)
    made.beat()
    for rank in range(nodes):
        made.log(rank, f"rank{rank}.log", b"it trained\n" * 100)
    store.write(lambda c: c.execute("INSERT INTO offsets VALUES (?, 1, 0, 'out.log', 0, 11, x'00')", (run,)))
    store.write(lambda c: run_store.record_token(c, f"token of {run}", run))
    store.write(lambda c: c.execute("INSERT INTO thinned_runs VALUES (?, 1)", (run,)))
    folder = flight_records.folder_of(store.path.parent, run, 1)
    folder.mkdir(parents=True)
    (folder / "nccl0").write_bytes(b"x" * 500)
    if ends:
        for rank in range(nodes):
            made.exit(rank)
        made.add_event(EventKind.FINISHED)
    return made


def fill_empty_tables(connection: sqlite3.Connection) -> None:
    """A row of the run in every table that has a column `run`, whoever adds one in times to come."""
    values = {"TEXT": "x", "BLOB": b"x", "INTEGER": 1, "REAL": 1.0}
    for table in deletion.run_tables(connection):
        if connection.execute(f"SELECT count(*) FROM {table} WHERE run = ?", (RUN,)).fetchone()[0]:
            continue
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        row = [RUN if one["name"] == "run" else values[one["type"]] for one in columns]
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def rows_of(store: Store, run: str) -> dict[str, int]:
    with store.read() as connection:
        return deletion.count_rows(connection, run)


def all_rows(store: Store, run: str) -> list[tuple[object, ...]]:
    with store.read() as connection:
        tables = deletion.run_tables(connection)
        found = [connection.execute(f"SELECT * FROM {one} WHERE run = ?", (run,)).fetchall() for one in tables]
    return [tuple(row) for rows in found for row in rows]


def code_of(error: pytest.ExceptionInfo[ProblemsError]) -> str:
    return error.value.problems[0].code


@pytest.mark.parametrize(
    "name", ["tiny", "<script>alert(1)</script>", "'; DROP TABLE events; --", '" OR 1=1', "%_%", "试验\u202e`rm`"]
)
def test_nothing_of_a_deleted_run_is_left_in_any_table_but_its_record(
    store: Store, retention: Retention, home: Path, name: str
) -> None:
    finished(store, name=name)
    store.write(fill_empty_tables, orphans=True)
    before = rows_of(store, RUN)
    with store.read() as connection:
        assert set(before) == {"runs", *deletion.run_tables(connection)}
    record = retention.delete(RUN, by="page")
    assert rows_of(store, RUN) == {}
    assert not flight_records.folder_of(home, RUN, 1).parent.exists()
    assert (record.name, record.state, record.step, record.row_counts) == (name, "finished", 20, before)
    (kept,) = retention.deleted()
    assert (kept.run, kept.by, kept.deleted, kept.cleared, kept.archive) == (RUN, "page", NOW + 1000, NOW + 1000, None)
    with store.read() as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert snapshot.summaries(connection, {}, NOW) == []


@pytest.mark.parametrize("alike", [f"{RUN}a", RUN[:-1], RUN.upper(), f"{RUN}%", "20270115-080000-tiny_aaaa"])
def test_a_run_that_looks_alike_stays_as_it_was(store: Store, retention: Retention, home: Path, alike: str) -> None:
    finished(store)
    finished(store, alike)
    before = all_rows(store, alike)
    retention.delete(RUN, by="page")
    assert all_rows(store, alike) == before
    assert flight_records.folder_of(home, alike, 1).is_dir()


def test_a_run_that_goes_on_or_waits_or_has_not_proved_its_end_is_refused(
    store: Store, retention: Retention, clock: Clock
) -> None:
    made = finished(store, ends=False)
    waiting = StoredRun(store, "waiting", now=NOW, attempted=False)
    store.write(lambda c: queue_order.add(c, "waiting"))
    for run in (RUN, waiting.id):
        with pytest.raises(ProblemsError) as error:
            retention.delete(run, by="page")
        assert code_of(error) == "run_not_over"
    made.exit(0)
    made.add_event(EventKind.FAILING, 1)
    made.add_event(EventKind.FAILED)
    clock.now = made.now + 3600
    with pytest.raises(ProblemsError) as error:
        retention.delete(RUN, by="page")
    assert code_of(error) == "run_not_proved"
    assert error.value.problems[0].values["nodes"] == "1"
    assert rows_of(store, RUN)["events"]
    # Once its nodes are not asked any more, a user may give it up; a rule may not.
    clock.now = made.now + FORGOTTEN_AFTER_S + 1
    with pytest.raises(ProblemsError):
        retention.delete(RUN, by="rule")
    retention.delete(RUN, by="page")
    assert rows_of(store, RUN) == {}


def test_a_run_that_is_being_started_just_now_is_refused(store: Store, retention: Retention, home: Path) -> None:
    finished(store)
    with launch_lock(home, RUN), pytest.raises(ProblemsError) as error:
        retention.delete(RUN, by="page")
    assert code_of(error) == "run_busy"


def test_of_two_tabs_that_delete_a_run_one_does_and_the_other_is_told(store: Store, retention: Retention) -> None:
    finished(store)
    told: list[str] = []
    ready = threading.Barrier(4)

    def delete() -> None:
        ready.wait()
        try:
            told.append(retention.delete(RUN, by="page").run)
        except ProblemsError as error:
            told.append(error.problems[0].code)

    threads = [threading.Thread(target=delete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told.count(RUN) == 1
    assert set(told) <= {RUN, "run_deleted", "run_busy"}
    assert len(retention.deleted()) == 1


def test_a_deletion_that_was_killed_shows_the_run_no_more_and_is_finished_later(
    store: Store, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = finished(store)
    made.steps(21, 60)
    monkeypatch.setattr(deletion, "ROWS", 10)
    done = []

    def killed(change, **more):  # type: ignore[no-untyped-def]
        if len(done) > 3:
            raise KeyboardInterrupt
        done.append(1)
        return Store.write(store, change, **more)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            retention.delete(RUN, by="page")
    assert rows_of(store, RUN)["points"] > 20, "it was in the middle"
    with store.read() as connection:
        assert snapshot.summaries(connection, {}, NOW) == []
        with pytest.raises(ProblemsError) as error:
            snapshot.snapshot(connection, RUN, NOW)
    assert code_of(error) == "run_deleted"
    with pytest.raises(StoreError):
        made.steps(61, 62)
    store.close()
    again = Store(store.path)
    Retention(store.path.parent, again).tick()
    assert rows_of(again, RUN) == {}
    again.close()


KILLED = """
import sys
from pathlib import Path
from backend.runs.store import deletion
from backend.runs.retention import Retention
from backend.runs.store.store import Store
deletion.ROWS = deletion.BLOB_ROWS = 1
home = Path(sys.argv[1])
Retention(home, Store(home / "megaboard.db")).delete(sys.argv[2], by="page")
"""


@pytest.mark.slow
def test_a_deletion_whose_process_was_killed_is_finished_by_the_next(store: Store, home: Path) -> None:
    made = finished(store)
    made.steps(21, 1000)
    finished(store, "other")
    before = all_rows(store, "other")
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(home), RUN])
    wait_for(lambda: Retention(home, store).deleted())
    process.kill()
    process.wait()
    assert rows_of(store, RUN) != {}, "the process was killed too late"
    Retention(home, store).tick()
    assert rows_of(store, RUN) == {}
    assert all_rows(store, "other") == before
    with store.read() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_each_transaction_of_a_deletion_is_short(
    store: Store, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = finished(store)
    made.steps(21, 400)
    monkeypatch.setattr(deletion, "ROWS", 50)
    changes: list[int] = []

    def counted(change, **more):  # type: ignore[no-untyped-def]
        def look(connection: sqlite3.Connection) -> object:
            before = connection.total_changes
            answer = change(connection)
            changes.append(connection.total_changes - before)
            return answer

        return Store.write(store, look, **more)

    monkeypatch.setattr(store, "write", counted)
    retention.delete(RUN, by="page")
    assert max(changes) <= 50
    assert len(changes) > 8


def test_the_audit_log_and_the_record_say_what_went_and_neither_can_be_changed(
    store: Store, retention: Retention, home: Path
) -> None:
    finished(store)
    before = rows_of(store, RUN)
    retention.delete(RUN, by="command")
    lines = [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]
    assert [(one["action"], one["run"], one["by"]) for one in lines] == [
        ("delete", RUN, "command"),
        ("deleted", RUN, "command"),
    ]
    assert lines[1]["row_counts"] == before
    for statement in ("DELETE FROM deleted_runs", "UPDATE deleted_runs SET name = 'x'"):
        with pytest.raises(StoreError, match="append-only"):
            store.write(lambda c, statement=statement: c.execute(statement))


def test_events_of_runs_that_are_there_can_still_not_be_deleted(store: Store, retention: Retention) -> None:
    finished(store)
    finished(store, "other")
    retention.delete(RUN, by="page")
    with pytest.raises(StoreError, match="append-only"):
        store.write(lambda c: c.execute("DELETE FROM events WHERE run = 'other'"))


def test_a_deleted_run_is_never_taken_for_unknown(store: Store, retention: Retention, home: Path) -> None:
    finished(store)
    assert back_up(store.path, NOW)
    retention.delete(RUN, by="page")
    with store.read() as connection:
        for ask in (
            lambda: run_store.job_of(connection, RUN),
            lambda: run_store.run_of_token(connection, f"token of {RUN}"),
        ):
            with pytest.raises(ProblemsError) as error:
                ask()
            assert code_of(error) == "run_deleted"
    why = StoreError("store_full", store.path, "no room")
    with pytest.raises(ProblemsError) as error:
        emergency_stop.find_run(store.path, RUN, None, why)
    assert error.value.problems[-1].code == "stop_needs_job", "its job in the spare copy is not taken"


def test_the_spare_copy_follows_a_deletion(store: Store, retention: Retention) -> None:
    finished(store)
    assert back_up(store.path, NOW)
    assert not back_up(store.path, NOW + 2000)
    retention.delete(RUN, by="page")
    assert back_up(store.path, NOW + 2000)
    assert not back_up(store.path, NOW + 3000)
    copy = Store(backup_path(store.path))
    assert rows_of(copy, RUN) == {}
    assert len(Retention(store.path.parent, copy).deleted()) == 1
    copy.close()


def test_on_a_full_disk_a_deletion_says_what_it_needs_and_the_run_stays_whole_until_there_is_room(
    home: Path,
) -> None:
    with full_disk(home / "home") as disk:
        store = Store(disk.folder / "megaboard.db")
        retention = Retention(disk.folder, store, audit=Audit(disk.folder).record, clock=lambda: NOW + 1000)
        finished(store)
        before = rows_of(store, RUN)
        disk.fill()
        with pytest.raises(StoreError, match="store_full"):
            store.set_draft("x" * (1 << 20))
        with pytest.raises(ProblemsError) as error:
            retention.delete(RUN, by="page")
        assert code_of(error) == "delete_no_room"
        assert error.value.problems[0].values["spare"] == str(backup_path(store.path))
        assert rows_of(store, RUN) == before
        disk.free()
        retention.delete(RUN, by="page")
        assert rows_of(store, RUN) == {}
        store.close()
