"""Programs on a node read only regular files that a user named, and only up to a limit."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.cluster.node_programs import DATA_PREVIEW, DATASET_INFO, PROGRAMS, SAMPLES, node_program
from backend.node.checks import checkpoint_files, fingerprints, software
from backend.node.regular_file import MOST_JSON_BYTES, read_json, read_regular
from backend.node.samples.main import count
from backend.node.training import prepare_data

DEEP = b'{"a": ' + b"[" * 200_000


def strange(path: Path, kind: str) -> None:
    """Put something at the path that no program may wait for or read into memory."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(MOST_JSON_BYTES + 1)
    else:
        path.write_bytes(DEEP)


KINDS = ("pipe", "device", "folder", "huge", "deep")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_a_regular_file_of_a_sensible_size_is_read(tmp_path: Path, kind: str) -> None:
    strange(tmp_path / "x", kind)
    with pytest.raises((OSError, ValueError)):
        read_json(str(tmp_path / "x"))


def test_a_file_of_the_most_that_is_allowed_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_regular(str(tmp_path / "x"), 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(str(tmp_path / "x"), 4)


def find(folder: str) -> object:
    return software.find_datasets(folder, ["a"])


def digest(folder: str) -> object:
    return len(prepare_data.digest_of({"dataset_dir": folder, "datasets": ["a"], "model": folder})["digest"])


def prints(folder: str) -> object:
    return fingerprints.data_prints(folder, ["a"], False)


def samples(folder: str) -> object:
    expected = {"folder": folder, "names": ["a"], "described": True, "max_samples": None, "val_size": 0}
    expected |= {"mix_strategy": "concat", "shares": None}
    return count({**expected, "model": None, "chat": True})["code"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (find, {"info": False, "unknown": [], "missing": [], "columns": {}}),
        (digest, 64),
        (prints, None),
        (samples, "dataset_info_missing"),
    ],
)
def test_a_strange_description_of_the_data_sets_is_as_none(
    tmp_path: Path, kind: str, ask: Callable[[str], object], answer: object
) -> None:
    strange(tmp_path / "dataset_info.json", kind)
    assert ask(str(tmp_path)) == answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors.index.json"])
def test_a_strange_file_of_a_checkpoint_counts_as_damaged(tmp_path: Path, kind: str, name: str) -> None:
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    strange(folder / name, kind)
    checkpoint = checkpoint_files.list_checkpoints({"folder": str(tmp_path)})["checkpoints"]["5"]
    assert checkpoint["damaged"] == ([] if kind == "folder" else [name])


@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors", "latest", ".metadata"])
def test_a_pipe_in_a_checkpoint_is_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    os.mkfifo(tmp_path / "checkpoint-5" / name)
    assert checkpoint_files.list_checkpoints({"folder": str(tmp_path)})["checkpoints"]["5"]["damaged"] == [name]


def described(folder: Path, data: Callable[[Path], object], name: str) -> Any:
    (folder / "dataset_info.json").write_text(json.dumps({"a": {"file_name": name}}))
    data(folder / name)
    return samples_of(folder)


def samples_of(folder: Path) -> Any:
    expected = {"folder": str(folder), "names": ["a"], "described": True, "max_samples": None, "val_size": 0}
    expected |= {"mix_strategy": "concat", "shares": None}
    return count({**expected, "model": str(folder), "chat": True})


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv", "a.txt", "a.parquet", "a.arrow"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_data_that_is_no_regular_file_is_missing(tmp_path: Path, kind: str, name: str) -> None:
    assert described(tmp_path, lambda path: strange(path, kind), name)["code"] == "dataset_file_missing"


@pytest.mark.parametrize("text", ["[" * 200_000, '[{"a": ' + "[" * 200_000])
def test_deep_data_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    answer = described(tmp_path, lambda path: path.write_text(text), "a.json")
    assert (answer["code"], answer["values"]["path"]) == ("dataset_unreadable", str(tmp_path / "a.json"))


def test_a_line_longer_than_any_sample_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.node.samples.rows.LONGEST", 1 << 20)

    def sparse(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(1 << 30)

    assert described(tmp_path, sparse, "a.txt")["code"] == "dataset_unreadable"


def test_a_tokenizer_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    answer = described(tmp_path, lambda path: path.write_text('{"text": "x"}\n'), "a.jsonl")
    assert (answer["samples"], "no regular file" in answer["unmeasured"]) == (1, True)


# test_data_preview.py runs DATA_PREVIEW, which needs LLaMA-Factory, and test_dataset_info.py runs DATASET_INFO.
ELSEWHERE = (DATA_PREVIEW, DATASET_INFO)
WITH_READERS = [name for name, modules in PROGRAMS.items() if "regular_file.py" in modules and name not in ELSEWHERE]


@pytest.mark.parametrize("program", WITH_READERS)
def test_the_programs_carry_what_reads_files(program: str, tmp_path: Path) -> None:
    """The programs run as they are sent: one file on standard input of the node's Python."""
    expected = {
        "fingerprints.py": ("read", {"folder": str(tmp_path), "name": "x", "seconds": 0}, {"seen": False}),
        "software.py": ("facts", {"master": None, "modules": {}}, None),
        "prepare_data.py": ("digest", {"dataset_dir": str(tmp_path), "datasets": [], "model": str(tmp_path)}, None),
        "checkpoint_files.py": ("list", {"folder": str(tmp_path)}, {"folder": str(tmp_path), "checkpoints": {}}),
        SAMPLES: ("count", {"folder": str(tmp_path), "names": [], "described": True}, None),
    }
    action, arguments, answer = expected[program]
    command = [sys.executable, "-", action, json.dumps(arguments), "--token", "T"]
    done = subprocess.run(command, input=node_program(program), capture_output=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith(b"T{")
    assert answer is None or json.loads(done.stdout[1:]) == answer
