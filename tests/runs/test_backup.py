"""There is always a complete copy of the database for a restore."""

import os
import sqlite3
from pathlib import Path

import pytest

from backend.runs.maintenance import Maintenance
from backend.runs.retention import Retention
from backend.runs.store.backup import EVERY_S, back_up, backup_path
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
    """Damage the middle of a file, as a disk may do."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xff" * (size // 2))


def test_a_database_that_the_disk_damaged_can_be_replaced_by_its_copy(path: Path) -> None:
    assert back_up(path, NOW)
    damage(path)
    with pytest.raises(sqlite3.Error):
        back_up(path, NOW + EVERY_S + 1)
    backup_path(path).replace(path)
    assert draft_of(path) == "good" * 20_000
    assert {item.name for item in path.parent.iterdir()} <= {path.name, f"{path.name}-wal", f"{path.name}-shm"}


def test_a_copy_is_private_of_one_moment_and_made_once_a_day_beside_a_writer(path: Path) -> None:
    store = Store(path)
    assert back_up(path, NOW)
    assert backup_path(path).stat().st_mode & 0o777 == 0o600
    store.set_draft("newer")
    assert not back_up(path, NOW + EVERY_S - 1)
    assert back_up(path, NOW + EVERY_S + 1)
    store.close()
    assert draft_of(backup_path(path)) == "newer"


def test_a_copy_is_on_the_disk_before_it_takes_the_place_of_the_last(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite does not sync what VACUUM INTO writes: https://www.sqlite.org/lang_vacuum.html
    synced, replace = [], os.replace
    monkeypatch.setattr("os.fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    monkeypatch.setattr("os.replace", lambda part, spare: (synced.append("replaced"), replace(part, spare)))
    assert back_up(path, NOW)
    assert synced == [f"{backup_path(path)}.part", "replaced", str(path.parent)]


def test_where_there_is_no_room_the_old_copy_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back_up(path, NOW)
    content = backup_path(path).read_bytes()
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 0}))
    with pytest.raises(OSError, match="no room"):
        back_up(path, NOW + EVERY_S + 1)
    assert backup_path(path).read_bytes() == content


@pytest.mark.parametrize("damaged", [False, True])
def test_the_keeper_makes_one_at_its_start_or_says_what_stands_in_its_way(
    path: Path, damaged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(path)
    if damaged:
        damage(path)
    maintenance = Maintenance(Retention(path.parent, store), path, lambda: NOW)
    maintenance.start()
    wait_for(lambda: caplog.messages if damaged else backup_path(path).exists())
    maintenance.close()
    store.close()
    assert backup_path(path).exists() is not damaged
    assert all(str(path) in message for message in caplog.messages)
