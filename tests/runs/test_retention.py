"""The store keeps what somebody reads: it grows slowly, drops raw rows by rule, and gives the space back."""

import base64
import errno
import hashlib
import json
import logging
import math
import shutil
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.monitor.watch import RunCache
from app.web.audit import Audit
from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.problems import ProblemsError
from backend.runs.collect import flight_records
from backend.runs.controller import Controller
from backend.runs.database import Database
from backend.runs.retention import Retention, Rules
from backend.runs.states import EventKind
from backend.runs.store import archive as archiving
from backend.runs.store import deletion, metrics, thinning
from backend.runs.store.metrics import STEPS_KEPT, FileKey
from backend.runs.store.store import Store, StoreError
from backend.runs.tasks import calibration
from backend.runs.view import snapshot
from tests.clock import Clock
from tests.runs.test_deletion import NOW, RUN, all_rows, code_of, finished, rows_of
from tools.stored_runs import StoredRun, step_row

DAY = 86400.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def retention(store: Store, home: Path, clock: Clock) -> Retention:
    return Retention(home, store, clock=clock, audit=Audit(home, clock).record)


def add_steps(made: StoredRun, rank: int, first: int, last: int) -> None:
    rows = [{**step_row(step, NOW + step, 1.0), "reserved_gib": rank + step / 1000} for step in range(first, last + 1)]
    made.store.write(lambda c: metrics.add_points(c, made.id, made.attempt, rank, rows))


def wide(store: Store, run: str = RUN, *, ends: bool = True) -> StoredRun:
    """Two nodes of four ranks each, 60 steps, a megabyte of log a rank."""
    made = StoredRun(store, run, now=NOW, nodes=2, gpus_per_node=4)
    made.start()
    for rank in range(8):
        add_steps(made, rank, 1, 60)
        for _ in range(16):
            made.log(rank // 4, f"rank{rank}.log", b"x" * 65535 + b"\n")
    for _ in range(5):
        made.now += 2
        made.beat()
    if ends:
        for node in range(2):
            made.exit(node)
        made.add_event(EventKind.FINISHED)
    return made


def steps_of(store: Store, rank: int, run: str = RUN) -> list[int]:
    with store.read() as connection:
        return [point.step for point in metrics.points(connection, run, rank=rank)]


def log_bytes(store: Store, node: int, file: str) -> int:
    with store.read() as connection:
        key = FileKey(run=RUN, attempt=1, rank=node, file=file)
        return len(metrics.log_tail(connection, key, size=1 << 30)[1])


def test_of_ranks_but_the_first_only_the_newest_steps_are_kept_while_a_run_goes_on(store: Store) -> None:
    made = StoredRun(store, RUN, now=NOW, nodes=1, gpus_per_node=2)
    for first in range(1, 3 * STEPS_KEPT, 10):
        for rank in (0, 1):
            add_steps(made, rank, first, first + 9)
    last = steps_of(store, 0)[-1]
    assert steps_of(store, 0) == [*range(1, last + 1)]
    assert steps_of(store, 1) == [*range(last - STEPS_KEPT + 1, last + 1)]


def test_raw_rows_go_a_while_after_the_end_and_what_is_read_stays(
    store: Store, retention: Retention, clock: Clock, home: Path
) -> None:
    made = wide(store)
    with closing(Controller(home, store, KnownHosts(home / "a", home / "b"), clock=clock)) as controller:

        def shown() -> list[object]:
            run_cache = RunCache(controller, Database(store), clock)
            with store.read() as connection:
                newest = metrics.newest_of_ranks(connection, RUN, 1, ranks=8)
                read = calibration.read_run(connection, RUN, None)[1]
                tails = [
                    metrics.log_tail(
                        connection, FileKey(run=RUN, attempt=1, rank=rank // 4, file=f"rank{rank}.log"), size=65536
                    )
                    for rank in range(8)
                ]
                return [
                    snapshot.snapshot(connection, RUN, made.now),
                    newest,
                    read,
                    tails,
                    run_cache.curves(RUN, None, None),
                ]

        before = shown()
        clock.now = made.now + 14 * DAY - 60
        assert retention.apply_rules() == (0, 0)
        clock.now = made.now + 14 * DAY + 60
        assert retention.apply_rules() == (1, 0)
        assert retention.apply_rules() == (0, 0), "once is enough"
        assert shown() == before
    assert [len(steps_of(store, rank)) for rank in range(8)] == [60, 1, 1, 1, 1, 1, 1, 1]
    assert log_bytes(store, 0, "rank0.log") == log_bytes(store, 1, "rank4.log") == 1 << 20
    assert log_bytes(store, 0, "rank1.log") == thinning.LOG_END_BYTES
    with store.read() as connection:
        assert connection.execute("SELECT count(*) FROM heartbeats").fetchone()[0] == 2


def test_raw_rows_of_a_run_that_goes_on_or_has_not_proved_its_end_stay(
    store: Store, retention: Retention, clock: Clock
) -> None:
    wide(store, ends=False)
    lost = wide(store, "lost", ends=False)
    lost.add_event(EventKind.LOSING, 0)
    lost.add_event(EventKind.LOST)
    before = [all_rows(store, run) for run in (RUN, "lost")]
    clock.now = NOW + 400 * DAY
    retention.set_rules(Rules(raw_days=0, run_days=0))
    retention.tick()
    assert [all_rows(store, run) for run in (RUN, "lost")] == before


def test_a_run_that_was_resumed_has_its_raw_rows_until_it_has_ended_again(
    store: Store, retention: Retention, clock: Clock
) -> None:
    made = wide(store, ends=False)
    for node in range(2):
        made.exit(node)
    made.add_event(EventKind.STOP_REQUESTED)
    made.add_event(EventKind.STOPPED)
    clock.now = made.now + 15 * DAY
    assert retention.apply_rules() == (1, 0)
    made.now = clock.now
    made.add_event(EventKind.RESUMED)
    made.attempt = 2
    made.begin(50)
    for kind in (EventKind.PREFLIGHT, EventKind.STARTING, EventKind.STARTED):
        made.add_event(kind)
    add_steps(made, 1, 51, 70)
    clock.now += 15 * DAY
    assert retention.apply_rules() == (0, 0)
    assert steps_of(store, 1) == [60, *range(51, 71)]
    made.now = clock.now
    for node in range(2):
        made.exit(node)
    made.add_event(EventKind.FINISHED)
    clock.now += 15 * DAY
    assert retention.apply_rules() == (1, 0)
    assert steps_of(store, 1) == [60, 70]


def test_a_rule_may_archive_and_delete_whole_runs_and_is_off_until_it_is_set(
    store: Store, retention: Retention, clock: Clock, home: Path
) -> None:
    finished(store)
    clock.now = NOW + 1000 * DAY
    assert retention.apply_rules()[1] == 0
    retention.set_rules(Rules(run_days=90))
    assert retention.apply_rules()[1] == 1
    assert (home / "archive" / f"{RUN}.zip").exists()
    assert retention.deleted()[0].by == "rule"
    assert "retention_rules" in (home / "audit.jsonl").read_text()


@pytest.mark.parametrize("days", [-1, 10**6, 1.5, True, "14"])
def test_days_that_are_none_are_refused(retention: Retention, days: object) -> None:
    with pytest.raises(ProblemsError) as error:
        Rules(raw_days=days)  # type: ignore[arg-type]
    assert code_of(error) == "bad_days"


def test_rules_that_cannot_be_read_drop_nothing(store: Store, retention: Retention) -> None:
    store.write(lambda c: c.execute("INSERT INTO retention VALUES (1, '{\"raw_days\": -5}')"))
    assert retention.rules() == Rules(raw_days=None)


def test_an_archive_holds_every_row_and_can_be_read_with_plain_tools(
    store: Store, retention: Retention, home: Path
) -> None:
    made = finished(store)
    store.write(
        lambda c: metrics.add_points(c, RUN, 1, 0, [{"step": 90, "time": 1.0, "loss": math.inf, "grad_norm": math.nan}])
    )
    counts = rows_of(store, RUN)
    record = retention.delete(RUN, by="page", archive_to=home / "kept")
    path = home / "kept" / f"{RUN}.zip"
    assert record.archive == str(path)
    assert record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert manifest["rows"] == counts == record.row_counts
        for name, said in manifest["files"].items():
            assert hashlib.sha256(archive.read(name)).hexdigest() == said["sha256"]
        points = [
            json.loads(line, parse_constant=pytest.fail) for line in archive.read("tables/points.jsonl").splitlines()
        ]
        assert [one["step"] for one in points] == [*range(1, 21), 90]
        assert (points[-1]["loss"], points[-1]["grad_norm"]) == ("inf", "nan")
        chunk = json.loads(archive.read("tables/log_chunks.jsonl").splitlines()[0])
        assert base64.b64decode(chunk["data"]["base64"]) == b"it trained\n" * 100
        assert archive.read("flight_records/1/nccl0") == b"x" * 500
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert made.id == manifest["run"]
    with store.read() as connection, pytest.raises(ProblemsError) as error:
        snapshot.snapshot(connection, RUN, NOW)
    assert code_of(error) == "run_archived"


def test_an_archive_that_does_not_hold_what_was_written_deletes_nothing(
    store: Store, retention: Retention, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(store)
    before = all_rows(store, RUN)
    sync = archiving.os.fsync

    def damage(file: int) -> None:
        """What a disk may do between the write and the reading back."""
        sync(file)
        with open(f"/proc/self/fd/{file}", "r+b") as part:
            part.seek(200)
            part.write(b"\xff" * 50)

    monkeypatch.setattr(archiving.os, "fsync", damage)
    with pytest.raises(ProblemsError) as error:
        retention.delete(RUN, by="page", archive_to=home / "kept")
    assert code_of(error) == "archive_failed"
    assert all_rows(store, RUN) == before
    assert list((home / "kept").iterdir()) == []


def test_a_file_of_somebody_else_is_not_overwritten_and_an_earlier_archive_is(
    store: Store, retention: Retention, home: Path
) -> None:
    finished(store)
    place = home / f"{RUN}.zip"
    place.write_bytes(b"mine")
    with pytest.raises(ProblemsError) as error:
        retention.delete(RUN, by="page", archive_to=home)
    assert code_of(error) == "archive_in_the_way"
    assert place.read_bytes() == b"mine"
    place.unlink()
    archiving.archive(store, home, RUN, home, now=NOW)
    assert retention.delete(RUN, by="page", archive_to=home).archive == str(place)


def test_a_run_that_changed_since_it_was_archived_is_not_deleted(store: Store, home: Path) -> None:
    made = finished(store)
    archived = archiving.archive(store, home, RUN, home, now=NOW)
    made.add_event(EventKind.NODE_STOPPED, 0)
    with pytest.raises(ProblemsError) as error:
        store.write(
            lambda c: deletion.begin(c, RUN, now=NOW, by="page", proofs_since=0.0, archived=archived), orphans=True
        )
    assert code_of(error) == "run_changed"
    assert rows_of(store, RUN)["runs"] == 1


def test_space_comes_back_from_a_file_that_this_version_made(store: Store, retention: Retention) -> None:
    wide(store)
    store.shrink_log()
    before = store.path.stat().st_size
    retention.delete(RUN, by="page")
    after = retention.storage()
    assert after.gives_back
    assert before > 8 << 20
    assert after.database < before / 2


def test_a_file_of_an_older_version_gives_space_back_once_it_was_compacted(home: Path, clock: Clock) -> None:
    path = home / "megaboard.db"
    with closing(sqlite3.connect(path)) as old:
        old.execute("CREATE TABLE x (y)")
        old.execute("DROP TABLE x")
    store = Store(path)
    retention = Retention(home, store, clock=clock)
    wide(store)
    wide(store, "second")
    retention.delete(RUN, by="page")
    found = retention.storage()
    assert not found.gives_back
    assert found.reusable > 4 << 20
    retention.compact()
    compacted = retention.storage()
    assert compacted.gives_back
    assert compacted.database < found.database - (4 << 20)
    retention.delete("second", by="page")
    assert retention.storage().database < compacted.database / 2
    store.close()


def test_without_room_for_a_second_copy_nothing_is_compacted(
    store: Store, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 1000}))
    with pytest.raises(ProblemsError) as error:
        retention.compact()
    assert code_of(error) == "no_room_to_compact"
    store.set_draft("as ever")


def test_sizes_by_kind_add_up_to_what_the_file_holds(store: Store, retention: Retention) -> None:
    made = StoredRun(store, RUN, now=NOW, nodes=2, gpus_per_node=4)
    made.start()
    for rank in range(8):
        for first in range(1, 400, 20):
            add_steps(made, rank, first, first + 19)
        made.log(rank // 4, f"rank{rank}.log", b"x" * 200_000)
    (found,) = retention.run_sizes()
    with store.read() as connection:
        used = connection.execute("SELECT sum(pgsize) FROM dbstat").fetchone()[0]
    assert found.total == pytest.approx(used, rel=0.25)
    assert found.kinds["logs"] == pytest.approx(1_600_000, rel=0.01)
    assert found.kinds["other_ranks"] == 7 * found.kinds["curves"]
    assert found.kept_by is not None
    assert found.kept_by.code == "run_not_over"


def test_growth_is_reported_once_there_is_something_to_compare(
    store: Store, retention: Retention, clock: Clock
) -> None:
    retention.tick()
    assert retention.storage().growth_per_day is None
    store.set_draft("x" * 1_000_000)
    clock.now += DAY / 2
    found = retention.storage()
    assert found.growth_per_day == pytest.approx(2_000_000, rel=0.05)
    assert found.growth_over_s == DAY / 2


def test_a_store_that_cannot_be_written_ends_the_round(
    store: Store, retention: Retention, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wide(store)
    clock.now = made.now + 15 * DAY
    monkeypatch.setattr(
        store, "write", lambda *_, **__: (_ for _ in ()).throw(StoreError("store_full", store.path, "x"))
    )
    with pytest.raises(StoreError):
        retention.apply_rules()


def test_one_run_that_cannot_be_read_does_not_keep_the_others(store: Store, retention: Retention, clock: Clock) -> None:
    finished(store, "broken")
    store.write(
        lambda c: c.execute("INSERT INTO events (run, attempt, kind, time, detail) VALUES ('broken', 1, 'x', 1, '{}')")
    )
    made = wide(store)
    retention.set_rules(replace(Rules(), run_days=30))
    clock.now = made.now + 15 * DAY
    assert retention.apply_rules() == (1, 0)
    clock.now = made.now + 31 * DAY
    assert retention.apply_rules()[1] == 1
    assert rows_of(store, "broken")["runs"] == 1


def keep_folder_of(run: str, patch: pytest.MonkeyPatch) -> None:
    """The flight records of a run cannot be removed, as where they belong to another user."""
    remove = shutil.rmtree

    def refuse(folder: Path) -> None:
        if folder.name == run:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        remove(folder)

    patch.setattr(shutil, "rmtree", refuse)


def test_flight_records_that_cannot_be_removed_keep_no_other_run_and_are_tried_again(
    store: Store,
    retention: Retention,
    clock: Clock,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    finished(store, "kept")
    finished(store)
    retention.set_rules(Rules(run_days=30, archive=False))
    clock.now = NOW + 31 * DAY
    with monkeypatch.context() as patch:
        keep_folder_of("kept", patch)
        assert retention.apply_rules()[1] == 2
        for _ in range(3):
            retention.tick()
            clock.now += DAY / 4
    assert retention.storage().growth_over_s == 3 * DAY / 4, "each try does not begin the measuring anew"
    assert rows_of(store, RUN) == rows_of(store, "kept") == {}
    assert {one.run: one.cleared is None for one in retention.deleted()} == {"kept": True, RUN: False}
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(told) == 1, "once, not at every tick"
    assert str(flight_records.folder_of(home, "kept", 1).parent) in told[0]
    retention.tick()
    assert not flight_records.folder_of(home, "kept", 1).parent.exists()
    assert all(one.cleared for one in retention.deleted())


def test_a_deletion_that_goes_on_in_a_store_that_cannot_be_written_ends_the_round(
    store: Store, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(store)
    with monkeypatch.context() as patch:
        keep_folder_of(RUN, patch)
        retention.delete(RUN, by="page")
    monkeypatch.setattr(
        store, "write", lambda *_, **__: (_ for _ in ()).throw(StoreError("store_full", store.path, "x"))
    )
    with pytest.raises(StoreError):
        retention.tick()
