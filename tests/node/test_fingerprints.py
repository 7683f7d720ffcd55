"""Fingerprints of real files, and the file that shows whether nodes share a disk."""

import errno
import json
import os
from pathlib import Path

import pytest

from backend.node.checks import fingerprints
from backend.node.checks.fingerprints import BLOCK, WHOLE, print_of, prints, read, remove, write


def printed(home: Path, **more: object) -> dict[str, dict[str, str]]:
    return prints({"model": str(home / "model"), "folder": str(home), "datasets": ["d"], "plain": False, **more})


def make(home: Path) -> Path:
    (home / "model").mkdir(parents=True)
    (home / "model" / "config.json").write_text("{}")
    (home / "dataset_info.json").write_text(json.dumps({"d": {"file_name": "d.json"}}))
    (home / "d.json").write_text("[]")
    return home


def test_equal_folders_have_equal_prints_whatever_documents_lie_beside(tmp_path: Path) -> None:
    first_one, two = make(tmp_path / "one"), make(tmp_path / "two")
    (first_one / "model" / "README.md").write_text("hello")
    assert printed(first_one)["model"] == printed(two)["model"]
    (two / "model" / "config.json").write_text("{ }")
    assert printed(first_one)["model"] != printed(two)["model"]


def test_a_large_file_is_distinguished_by_its_middle_and_its_end(tmp_path: Path) -> None:
    path, result = tmp_path / "model.safetensors", set()
    for offset in (None, 0, 3 * WHOLE, 6 * WHOLE - 1):
        with open(path, "wb") as file:
            file.truncate(6 * WHOLE)
            if offset is not None:
                file.seek(offset)
                file.write(b"x")
        result.add(print_of(str(path)))
    assert len(result) == 4
    assert BLOCK < WHOLE


def test_only_an_absent_file_or_another_one_counts_as_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = {"folder": str(tmp_path / "runs"), "name": ".megaboard-2", "seconds": 0}
    os.mkfifo(tmp_path / ".megaboard-2")
    assert read(question) == {"seen": False}

    def failing(path: str, most: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(fingerprints, "read_regular", failing)
    with pytest.raises(OSError, match="Input/output error"):
        read(question)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert print_of(str(tmp_path / "model.safetensors")) == "no regular file"


def test_a_description_counts_and_a_missing_file_is_left_to_others(tmp_path: Path) -> None:
    home = make(tmp_path)
    before = printed(home)["data"]
    (home / "dataset_info.json").write_text(json.dumps({"d": {"file_name": "d.json", "formatting": "sharegpt"}}))
    assert printed(home)["data"] != before
    (home / "d.json").unlink()
    assert printed(home)["data"] is None
    assert printed(home / "nowhere") == {"model": None, "data": None}


def test_plain_data_may_be_files_or_folders_with_a_count_behind_them(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.parquet").write_bytes(b"1")
    data = printed(tmp_path, datasets=[f"{tmp_path}/rows#500"], plain=True)["data"]
    assert list(data) == [f"{tmp_path}/rows"]
    assert data[f"{tmp_path}/rows"].startswith("1 files ")


def test_what_one_writes_the_other_reads_and_only_that_is_removed(tmp_path: Path) -> None:
    expected = {"folder": str(tmp_path / "runs" / "later"), "name": ".megaboard-1", "seconds": 0}
    assert write(expected) == {"written": True}
    path = tmp_path / ".megaboard-1"
    assert read(expected) == {"seen": True}
    # The same words may be another folder on another node: `~/out` of another home.
    assert read({**expected, "folder": str(tmp_path.parent / "other")}) == {"seen": False}
    path.write_text("mine")
    remove(expected)
    assert path.exists()
    path.write_text(".megaboard-1")
    remove(expected)
    assert list(tmp_path.iterdir()) == []
