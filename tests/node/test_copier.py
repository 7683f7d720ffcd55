"""Files are copied completely and verified. They are never overwritten, and a second try continues the first."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.cluster import node_programs
from backend.node.copier.destination import CopyError, Destination, check_room
from backend.node.copier.files import PART
from backend.node.copier.give import serve
from backend.node.copier.take import Taker

FILES = {"config.json": b"{}", "weights/1.bin": os.urandom(3 << 20), "weights/2.bin": b"", "名.txt": b"x"}

OTHER_USER = 65_533


class Pair:
    """A sender and a receiver on this machine, each with a folder of its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source, self.target = folder / "giver", folder / "taker"
        self.server: Any = None

    def write(self, root: Path, files: dict[str, bytes] = FILES) -> None:
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)

    def told(self, root: Path, names: list[str] | None = None, token: str = "t") -> dict[str, Any]:
        """Return the content of copy.json for a node."""
        port = self.server.server_port if self.server else 0
        return {"address": "127.0.0.1", "port": port, "token": token, "roots": [{"root": str(root), "names": names}]}

    def take(self, names: list[str] | None = None, token: str = "t") -> dict[str, Any]:
        """Return the receiver's error; empty if it has all files."""
        if self.server is None:
            self.server, _ = serve(self.told(self.source, names))
        try:
            Taker(str(self.folder), self.told(self.target, names, token)).take()
        except CopyError as error:
            return error.answer
        return {}

    def taken(self) -> dict[str, bytes]:
        files = [path for path in self.target.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.target)): path.read_bytes() for path in files}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    path = Pair(tmp_path)
    path.write(path.source)
    yield path
    if path.server:
        path.server.shutdown()
        path.server.server_close()


def test_a_folder_is_taken_whole(pair: Pair) -> None:
    assert pair.take() == {}
    assert pair.taken() == FILES
    assert [path.name for path in pair.folder.glob("taker*")] == ["taker"]
    assert json.loads((pair.folder / "progress.json").read_text())["done"] == sum(map(len, FILES.values()))


def test_what_is_there_stays_and_only_the_rest_is_taken(pair: Pair) -> None:
    pair.write(pair.target, {"weights/1.bin": FILES["weights/1.bin"], "mine": b"own"})
    before = (pair.target / "weights/1.bin").stat().st_ino
    assert pair.take() == {}
    assert pair.taken() == FILES | {"mine": b"own"}
    assert (pair.target / "weights/1.bin").stat().st_ino == before


@pytest.mark.parametrize("other", [b"[]", b"{ }"])
def test_a_file_that_differs_is_reported_and_nothing_is_taken(pair: Pair, other: bytes) -> None:
    pair.write(pair.target, {"config.json": other})
    assert pair.take() == {"code": "copy_differs", "paths": [str(pair.target / "config.json")], "count": 1}
    assert pair.taken() == {"config.json": other}


def test_names_are_taken_and_nothing_else(pair: Pair) -> None:
    assert pair.take(names=["config.json", "weights"]) == {}
    assert sorted(pair.taken()) == ["config.json", "weights/1.bin", "weights/2.bin"]


def test_another_try_goes_on_where_the_last_one_ended(pair: Pair) -> None:
    part = pair.folder / f"taker{PART}" / "weights/1.bin"
    part.parent.mkdir(parents=True)
    part.write_bytes(FILES["weights/1.bin"][: 2 << 20])
    assert pair.take() == {}
    assert pair.taken() == FILES
    assert json.loads((pair.folder / "progress.json").read_text())["done"] == sum(map(len, FILES.values()))


def test_a_part_longer_than_the_file_is_begun_again(pair: Pair) -> None:
    part = pair.folder / f"taker{PART}" / "config.json"
    part.parent.mkdir()
    part.write_bytes(b"of an older file")
    assert pair.take() == {}
    assert pair.taken() == FILES


def test_parts_of_files_that_are_no_longer_given_do_not_become_part_of_the_folder(pair: Pair) -> None:
    part = pair.folder / f"taker{PART}" / "old/1.bin"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half of what the giver had")
    assert pair.take() == {}
    assert pair.taken() == FILES


def test_a_part_that_went_bad_is_thrown_away_and_reported(pair: Pair) -> None:
    part = pair.folder / f"taker{PART}" / "weights/1.bin"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"\0" * (2 << 20))
    assert pair.take() == {"code": "copy_corrupt", "path": str(pair.target / "weights/1.bin")}
    assert not pair.target.exists()
    assert pair.take() == {}
    assert pair.taken() == FILES


def test_links_are_followed_but_not_in_circles(pair: Pair) -> None:
    (pair.source / "blob").symlink_to(pair.source / "config.json")
    (pair.source / "weights/up").symlink_to(pair.source)
    assert pair.take() == {}
    assert pair.taken() == FILES | {"blob": b"{}"}


def test_a_link_in_place_of_the_parts_leads_to_no_other_folder(pair: Pair) -> None:
    """Another user may write beside a folder on a disk that users share, or into it."""
    private = pair.folder / "private"
    pair.write(private, {"config.json": b"mine", "thesis": b"mine"})
    for parts in (pair.folder / f"taker{PART}", pair.target / PART):
        parts.parent.mkdir(exist_ok=True)
        parts.symlink_to(private)
        with pytest.raises(OSError, match="link"):
            pair.take()
        parts.unlink()
    assert {path.name: path.read_bytes() for path in private.iterdir()} == {"config.json": b"mine", "thesis": b"mine"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_parts_of_another_user_are_not_continued(pair: Pair) -> None:
    parts = pair.folder / f"taker{PART}"
    parts.mkdir()
    os.chown(parts, OTHER_USER, OTHER_USER)
    with pytest.raises(OSError, match="another user"):
        pair.take()
    assert list(parts.iterdir()) == []


def test_a_link_in_place_of_a_part_leads_to_no_other_file(pair: Pair) -> None:
    private = pair.folder / "private"
    private.write_bytes(b"mine")
    part = pair.folder / f"taker{PART}" / "config.json"
    part.parent.mkdir()
    part.symlink_to(private)
    with pytest.raises(OSError, match="symbolic link"):
        pair.take()
    assert private.read_bytes() == b"mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links of other users")
@pytest.mark.parametrize("name", ["key", "folder"])
def test_a_link_that_another_user_made_to_a_file_of_this_user_is_not_given(pair: Pair, name: str) -> None:
    """He may write into the model's folder, but not read the file. The copies would be readable."""
    private = pair.folder / "private"
    pair.write(private, {"key": b"secret"})
    (pair.source / "weights" / "link").symlink_to(private / "key" if name == "key" else private)
    os.chown(pair.source / "weights" / "link", OTHER_USER, OTHER_USER, follow_symlinks=False)
    with pytest.raises(OSError, match="another user"):
        pair.take()


@pytest.mark.parametrize("token", ["other", "t\u00e9"])
def test_without_the_token_nothing_is_given(pair: Pair, token: str) -> None:
    assert pair.take(token=token) == {"code": "copy_refused", "status": 403}
    assert not pair.target.exists()


def test_a_program_that_fails_says_why_and_keeps_no_token(pair: Pair) -> None:
    assert pair.take() == {}
    (pair.target / "config.json").write_text("[]")
    (pair.folder / "copy.json").write_text(json.dumps(pair.told(pair.target)))
    (pair.folder / node_programs.COPIER).write_bytes(node_programs.node_program(node_programs.COPIER))
    command = [sys.executable, str(pair.folder / node_programs.COPIER), str(pair.folder), "take"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr[:24]) == (1, "megaboard: copy_differs ")
    assert json.loads((pair.folder / "result.json").read_text())["code"] == "copy_differs"
    assert not (pair.folder / "copy.json").exists()


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up"])
def test_a_giver_has_no_say_over_what_lies_outside(tmp_path: Path, path: str) -> None:
    with pytest.raises(CopyError):
        Destination(str(tmp_path / "root")).check(path)


def test_a_disk_without_room_is_reported_before_anything_is_taken(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (10 << 30, 0, 2 << 30))
    destination = Destination(str(tmp_path / "root"))
    check_room([destination], [{"root": 0, "path": "a", "size": 1 << 30}])
    with pytest.raises(CopyError) as raised:
        check_room([destination], [{"root": 0, "path": "a", "size": 2 << 30}])
    assert raised.value.answer == {"code": "copy_no_room", "path": destination.root, "needed_gib": 2.0, "free_gib": 2.0}
