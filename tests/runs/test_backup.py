"""There is always a whole copy of the database to go back to."""

import os
import sqlite3
from pathlib import Path

import pytest

from backend.runs.store.backup import EVERY_S, SpareKeeper, keep_spare, spare_of
from backend.runs.store.store import Store
from tests.waiting import wait_for

NOW = 1_800_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = Store(tmp_path / "megaboard.db")
    store.set_draft("good" * 20_000)
    store.close()
    return store.path


def draft_of(path: Path) -> str | None:
    store = Store(path)
    try:
        return store.get_draft()
    finally:
        store.close()


def damage(path: Path) -> None:
    """What a disk may do to the middle of a file."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xff" * (size // 2))


def test_a_database_that_the_disk_damaged_can_be_replaced_by_its_copy(path: Path) -> None:
    assert keep_spare(path, NOW)
    damage(path)
    with pytest.raises(sqlite3.Error):
        keep_spare(path, NOW + EVERY_S + 1)
    spare_of(path).replace(path)
    assert draft_of(path) == "good" * 20_000
    assert {one.name for one in path.parent.iterdir()} <= {path.name, f"{path.name}-wal", f"{path.name}-shm"}


def test_a_copy_is_private_of_one_moment_and_made_once_a_day_beside_a_writer(path: Path) -> None:
    store = Store(path)
    assert keep_spare(path, NOW)
    assert spare_of(path).stat().st_mode & 0o777 == 0o600
    store.set_draft("newer")
    assert not keep_spare(path, NOW + EVERY_S - 1)
    assert keep_spare(path, NOW + EVERY_S + 1)
    store.close()
    assert draft_of(spare_of(path)) == "newer"


def test_a_copy_is_on_the_disk_before_it_takes_the_place_of_the_last(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite does not sync what VACUUM INTO writes: https://www.sqlite.org/lang_vacuum.html
    synced, replace = [], os.replace
    monkeypatch.setattr("os.fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    monkeypatch.setattr("os.replace", lambda part, spare: (synced.append("replaced"), replace(part, spare)))
    assert keep_spare(path, NOW)
    assert synced == [f"{spare_of(path)}.part", "replaced", str(path.parent)]


def test_where_there_is_no_room_the_old_copy_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_spare(path, NOW)
    kept = spare_of(path).read_bytes()
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 0}))
    with pytest.raises(OSError, match="no room"):
        keep_spare(path, NOW + EVERY_S + 1)
    assert spare_of(path).read_bytes() == kept


@pytest.mark.parametrize("damaged", [False, True])
def test_the_keeper_makes_one_at_its_start_or_says_what_stands_in_its_way(
    path: Path, damaged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if damaged:
        damage(path)
    keeper = SpareKeeper(path, lambda: NOW)
    keeper.start()
    wait_for(lambda: caplog.messages if damaged else spare_of(path).exists())
    keeper.close()
    assert spare_of(path).exists() is not damaged
    assert all(str(path) in message for message in caplog.messages)
