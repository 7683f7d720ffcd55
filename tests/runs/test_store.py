import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from backend.job.problems import ProblemsError
from backend.runs.states import EventKind, RunState
from backend.runs.store import run_store
from backend.runs.store.schema import MIGRATIONS
from backend.runs.store.store import Store, StoreError


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "home" / "megaboard.db", clock=lambda: 100.0)
    yield store
    store.close()


def _create(store: Store, run: str, addresses=("10.0.0.1:22",)) -> None:
    store.write(
        lambda c: run_store.create_run(c, run, name="n", engine="e", job="name: n", addresses=addresses, time=1.0)
    )


def _append(store: Store, run: str, kind: EventKind) -> bool:
    return store.write(lambda c: run_store.append(c, run, kind, time=2.0))


def test_files_are_private_to_their_owner(store: Store) -> None:
    store.set_draft("name: a")
    files = list(store.path.parent.iterdir())
    assert len(files) == 3, "database, log and its index"
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_draft_survives_a_restart(store: Store) -> None:
    assert store.get_draft() is None
    store.set_draft("name: a")
    store.set_draft("name: b")
    store.close()
    again = Store(store.path)
    assert again.get_draft() == "name: b"
    again.close()


def test_write_rolls_everything_back_when_the_change_raises(store: Store) -> None:
    def change(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO draft VALUES (1, 'half', 0)")
        raise LookupError("killed")

    with pytest.raises(LookupError):
        store.write(change)
    assert store.get_draft() is None


def test_readers_cannot_write_and_see_one_state(store: Store) -> None:
    store.set_draft("old")
    with store.read() as connection:
        assert connection.execute("SELECT job FROM draft").fetchone()[0] == "old"
        store.set_draft("new")
        assert connection.execute("SELECT job FROM draft").fetchone()[0] == "old"
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM draft")
    assert store.get_draft() == "new"


def test_many_threads_write_without_loss(store: Store) -> None:
    def work(number: int) -> None:
        for index in range(20):
            run = f"r{number}-{index}"
            _create(store, run, [run])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as connection:
        assert len(run_store.unfinished_runs(connection)) == 80


def test_full_disk_raises_a_typed_error_and_keeps_the_last_good_state(store: Store) -> None:
    store.set_draft("good")
    pages = store.write(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
    store.write(lambda c: c.execute(f"PRAGMA max_page_count = {pages}"))
    with pytest.raises(StoreError) as caught:
        store.set_draft("x" * 1_000_000)
    assert caught.value.code == "store_full"
    assert caught.value.problem.values["path"] == str(store.path)
    assert store.get_draft() == "good"
    store.set_draft("smaller")
    assert store.get_draft() == "smaller"


def test_corrupt_file_raises_a_typed_error_and_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "megaboard.db"
    path.write_bytes(b"not a database " * 1000)
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert caught.value.code == "store_corrupt"
    assert path.read_bytes() == b"not a database " * 1000


def test_newer_schema_is_refused(store: Store) -> None:
    store.write(lambda c: c.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}"))
    store.close()
    with pytest.raises(StoreError) as caught:
        Store(store.path)
    assert caught.value.code == "store_newer"


def test_a_database_of_the_first_schema_is_upgraded_and_keeps_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "megaboard.db"
    old = sqlite3.connect(path)
    for statement in MIGRATIONS[0]:
        old.execute(statement)
    old.execute("INSERT INTO runs VALUES ('r', 'n', 'e', 'job', 1.0, 2.0)")
    old.execute("INSERT INTO attempts VALUES ('r', 1, 1.0, 'a', 29500, '{}')")
    old.execute("INSERT INTO events VALUES (1, 'r', 1, NULL, 'created', 1.0, '{}')")
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()
    store = Store(path)
    with store.read() as connection:
        assert dict(connection.execute("SELECT * FROM runs").fetchone()) == {
            **{"id": "r", "name": "n", "engine": "e", "job": "job", "created": 1.0, "ended": 2.0},
            "restarts": 0,
        }
        assert connection.execute("SELECT checkpoint_step FROM attempts").fetchone()[0] is None
        assert connection.execute("SELECT count(*) FROM events").fetchone()[0] == 1
        assert connection.execute("SELECT count(*) FROM queue").fetchone()[0] == 0
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    store.close()


def test_folder_without_permission_raises_a_typed_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError) as caught:
        Store(file / "megaboard.db")
    assert caught.value.code == "store_failed"


def test_closed_store_refuses_writes(store: Store) -> None:
    store.close()
    with pytest.raises(StoreError):
        store.set_draft("late")


def test_events_cannot_be_changed_or_removed(store: Store) -> None:
    _create(store, "r")
    for statement in ("UPDATE events SET kind = 'lost'", "DELETE FROM events"):
        with pytest.raises(StoreError, match="append-only"):
            store.write(lambda c, statement=statement: c.execute(statement))


def test_state_moves_once_however_many_see_the_end(store: Store) -> None:
    _create(store, "r")
    for kind in (EventKind.PREFLIGHT, EventKind.STARTING, EventKind.STARTED):
        assert _append(store, "r", kind)
    other = Store(store.path)
    assert _append(store, "r", EventKind.FINISHED)
    assert not _append(other, "r", EventKind.FAILING)
    assert not _append(other, "r", EventKind.FINISHED)
    other.close()
    with store.read() as connection:
        assert run_store.state_of(connection, "r") is RunState.FINISHED
        assert [event.kind for event in run_store.events(connection, "r", newest=2)] == ["started", "finished"]


def test_second_run_on_a_node_is_refused_and_names_the_holder(store: Store) -> None:
    _create(store, "first", ["a:22", "b:22"])
    with pytest.raises(ProblemsError) as caught:
        _create(store, "second", ["c:22", "b:22"])
    (problem,) = caught.value.problems
    assert (problem.code, problem.node, problem.values["run"]) == ("node_taken", "b:22", "first")
    with store.read() as connection:
        assert run_store.unfinished_runs(connection) == ["first"], "nothing of the second is left"
    assert _append(store, "first", EventKind.FAILING)
    assert _append(store, "first", EventKind.FAILED)
    _create(store, "third", ["c:22", "b:22"])


def test_unknown_run_is_a_problem_of_the_user(store: Store) -> None:
    with store.read() as connection, pytest.raises(ProblemsError) as caught:
        run_store.run_row(connection, "nope")
    assert caught.value.problems[0].code == "unknown_run"


def test_store_of_another_process_is_waited_for(store: Store) -> None:
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO draft VALUES (1, 'theirs', 0)")
    writer = threading.Thread(target=store.set_draft, args=("ours",))
    writer.start()
    other.execute("COMMIT")
    writer.join()
    assert store.get_draft() == "ours"
    other.close()
