"""Facts that are read on a node: a data set's description with any content, and the origin of software."""

import importlib.machinery
import json
import os
from pathlib import Path
from typing import Any

import pytest

from backend.node.checks.software import (
    commit_of,
    cuda_of_torch,
    find_datasets,
    find_files,
    origin_of,
    other_owner,
    version_of,
)


@pytest.mark.parametrize("text", ['["mine"]', "5", "null", "{", ""])
def test_a_description_that_is_no_mapping_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset_info.json").write_text(text)
    assert find_datasets(str(tmp_path), ["mine"])["info"] is False


def test_a_data_set_whose_entry_says_nothing_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": "mine.json", "other": {"file_name": 5}}))
    datasets = find_datasets(str(tmp_path), ["mine", "other"])
    nothing: dict[str, Any] = {"columns": {}, "ranking": [], "judged": []}
    assert datasets == {"info": True, "unknown": ["mine"], "missing": [str(tmp_path / "5")], **nothing}


def test_the_columns_that_the_rows_of_a_data_set_lack_are_named(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": {"file_name": "mine.json"}}))
    (tmp_path / "mine.json").write_text(json.dumps([{"instruction": "a", "answer": "b"}]))
    assert find_datasets(str(tmp_path), ["mine"])["columns"] == {"mine": ["input", "output"]}


def test_files_whose_rows_lack_an_answer_are_named_with_the_row(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"solution": "4"}\n')
    (tmp_path / "bad.jsonl").write_text('{"solution": "4"}\n{"solution": 4}\n')
    good, bad, gone = (str(tmp_path / name) for name in ("good.jsonl", "bad.jsonl#1", "gone.jsonl"))
    found = find_files([good, bad, gone], ["solution"])
    assert (found["missing"], found["unanswered"]) == ([gone], {bad: 2})
    assert find_files([bad], [])["unanswered"] == {}


def checkout(folder: Path, head: str = "ref: refs/heads/main") -> Path:
    (folder / ".git" / "refs" / "heads").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text(f"{head}\n")
    return folder


def test_the_commit_of_a_checkout_is_read_wherever_git_keeps_it(tmp_path: Path) -> None:
    loose = checkout(tmp_path / "loose")
    (loose / ".git" / "refs" / "heads" / "main").write_text("a" * 40 + "\n")
    (loose / "part").mkdir()
    packed = checkout(tmp_path / "packed")
    (packed / ".git" / "packed-refs").write_text(f"# pack-refs with: peeled\n{'b' * 40} refs/heads/main\n")
    detached = checkout(tmp_path / "detached", "c" * 40)
    folders = (loose, loose / "part", packed, detached, checkout(tmp_path / "empty"), Path("/"))
    assert [commit_of(str(folder))[:1] for folder in folders] == ["a", "a", "b", "c", "", ""]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (None, "0.9.5"),
        ({"url": "https://x/roll.git", "vcs_info": {"commit_id": "d" * 40}}, f"0.9.5 (commit {'d' * 10})"),
        ({"url": "file:///tmp/a.whl", "archive_info": {}}, "0.9.5"),
        ({"url": "file://{checkout}", "dir_info": {"editable": True}}, f"0.9.5 (commit {'e' * 10})"),
        # A copy of the checkout: where that stands today says nothing of it.
        ({"url": "file://{checkout}", "dir_info": {}}, "0.9.5"),
        ({"url": "file://localhost/none", "dir_info": {"editable": True}}, "0.9.5"),
    ],
)
def test_a_version_tells_the_commit_it_was_installed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, object] | None, text: str
) -> None:
    # The files of PEP 610: https://packaging.python.org/en/latest/specifications/direct-url/
    path = tmp_path / "mine_probe-0.9.5.dist-info"
    path.mkdir()
    (path / "METADATA").write_text("Name: mine-probe\nVersion: 0.9.5\n")
    (tmp_path / "mine_probe.py").touch()
    if source:
        folder = checkout(tmp_path / "checkout", "e" * 40)
        (path / "direct_url.json").write_text(json.dumps(source).replace("{checkout}", str(folder)))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version_of("mine_probe", "mine-probe") == text
    # Installed, but without the module, as PyPI's mcore-adapter.
    assert (version_of("mine_adapter", "mine-probe"), origin_of("mine-probe")["version"]) == (None, "0.9.5")


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "12.8"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ""),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", None),
        ("__version__ = '1'\n", None),
    ],
)
def test_torch_s_cuda_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, cuda: str | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: importlib.machinery.PathFinder.find_spec(name, [str(tmp_path)])
    )
    assert cuda_of_torch() == cuda


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of other users")
def test_the_owner_of_a_folder_is_named_if_it_is_another_user(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 65_533, 65_533)
    assert other_owner(str(other)) == "65533"
    assert [other_owner(str(path)) for path in (tmp_path, tmp_path / "none", Path("/tmp"))] == ["", "", ""]
    assert list(other.iterdir()) == []
