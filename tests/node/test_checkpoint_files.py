"""The checkpoints that a node lists and renames, with files as torch.save and safetensors write them."""

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest

from backend.cluster.inventory import checkpoints
from backend.cluster.node import NodeError
from backend.cluster.node_group import GroupError
from backend.node.checks import checkpoint_files
from backend.node.regular_file import MOST_JSON_BYTES
from tests.cluster.jobs import make_job
from tests.fakes import FakeNode


def _torch() -> bytes:
    """Return a file as torch.save writes it: a zip without a comment."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 100)
    return buffer.getvalue()


def _safetensors() -> bytes:
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


WHOLE = {
    "trainer_state.json": b'{"global_step": 6}',
    "optimizer.pt": _torch(),
    "rng_state_0.pth": _torch(),
    "model.safetensors": _safetensors(),
    "old/optimizer.bin": b"\x80\x02.",
    "pytorch_model.bin.index.json": b'{"weight_map": {"a": "model.safetensors"}}',
    "latest": b"global_step6",
    "global_step6/mp_rank_00_model_states.pt": _torch(),
    "__0_0.distcp": b"any bytes",
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, data in WHOLE.items():
        path = tmp_path / "checkpoint-6" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


def _list(folder: Path) -> dict[str, dict[str, list[str]]]:
    result = checkpoint_files.list_checkpoints({"folder": str(folder)})
    assert result["folder"] == str(folder)
    return result["checkpoints"]


def test_whole_files_are_listed_and_nothing_is_said_against_them(results: Path) -> None:
    (results / "runs").mkdir()
    (results / "before-attempt-2-checkpoint-9").mkdir()
    (results / "checkpoint-7").write_text("no folder")
    assert _list(results) == {"6": {"files": sorted(WHOLE), "damaged": []}}


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "rng_state_0.pth", "model.safetensors", "old/optimizer.bin", "latest"]
)
@pytest.mark.parametrize("length", [0, -1])
def test_a_file_that_was_not_written_to_its_end_is_damaged(results: Path, name: str, length: int) -> None:
    path = results / "checkpoint-6" / name
    path.write_bytes(path.read_bytes()[:length])
    assert _list(results)["6"]["damaged"] == [name]


@pytest.mark.parametrize("start", [b"version https://git-lfs", b"\xff" * 8, struct.pack("<Q", 1 << 40)])
def test_a_file_whose_header_would_be_longer_than_it_is_damaged(results: Path, start: bytes) -> None:
    (results / "checkpoint-6/model.safetensors").write_bytes(start + _safetensors())
    assert _list(results)["6"]["damaged"] == ["model.safetensors"]


def test_the_state_of_another_step_and_an_index_of_missing_parts_are_damaged(results: Path) -> None:
    (results / "checkpoint-6/trainer_state.json").write_text('{"global_step": 5}')
    (results / "checkpoint-6/model.safetensors").unlink()
    assert _list(results)["6"]["damaged"] == ["pytorch_model.bin.index.json", "trainer_state.json"]


def _long_state(step: int) -> bytes:
    """Return a state as the Trainer writes (sorted keys, two spaces) after many logged steps: more than one read."""
    record = {"epoch": 0.5, "grad_norm": 1.25, "learning_rate": 1e-05, "loss": 2.5, "step": 3}
    state = {"best_global_step": 2, "best_metric": None, "epoch": 1.0, "global_step": step}
    few = json.dumps({**state, "log_history": [record]}, indent=2, sort_keys=True) + "\n"
    item = json.dumps(record, indent=2, sort_keys=True).replace("\n", "\n    ")
    many = f"{item},\n    " * (MOST_JSON_BYTES // len(item))
    return few.replace(item, many + item).encode()


def _large_safetensors() -> bytes:
    pad = "x" * MOST_JSON_BYTES
    header = json.dumps({"__metadata__": {"pad": pad}, "w": {"dtype": "F32", "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


LARGE = {
    "trainer_state.json": _long_state(6),
    "model.safetensors": _large_safetensors(),
    "tokenizer.json": json.dumps({"vocab": "x" * MOST_JSON_BYTES}).encode(),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_whole_file_that_is_too_large_to_be_read_is_not_damaged(results: Path, name: str) -> None:
    (results / "checkpoint-6" / name).write_bytes(LARGE[name])
    assert _list(results)["6"]["damaged"] == []


@pytest.mark.parametrize("name", LARGE)
def test_a_large_file_that_was_cut_in_what_would_be_read_is_damaged(results: Path, name: str) -> None:
    (results / "checkpoint-6" / name).write_bytes(LARGE[name][: MOST_JSON_BYTES + 5])
    assert _list(results)["6"]["damaged"] == [name]


def test_a_large_state_of_another_step_is_damaged(results: Path) -> None:
    (results / "checkpoint-6/trainer_state.json").write_bytes(_long_state(5))
    assert _list(results)["6"]["damaged"] == ["trainer_state.json"]


def test_no_results_yet_are_no_checkpoints(tmp_path: Path) -> None:
    assert _list(tmp_path / "none") == {}


def test_set_aside_renames_once_however_often_and_from_wherever_it_is_asked(results: Path) -> None:
    expected = {"folder": str(results), "steps": [6, 8], "prefix": "before-attempt-2-"}
    assert checkpoint_files.set_aside(expected) == {"moved": [6]}
    assert checkpoint_files.set_aside(expected) == {"moved": []}
    assert _list(results) == {}
    assert (results / "before-attempt-2-checkpoint-6/optimizer.pt").read_bytes() == WHOLE["optimizer.pt"]


def test_a_node_that_cannot_read_its_disk_is_named() -> None:
    nodes = {0: FakeNode("a").on("list", reply={"folder": "/out", "checkpoints": {}}), 1: FakeNode("b")}
    nodes[0].on("set_aside", reply={"moved": []})
    nodes[1].on("list", reply={"error": "Stale file handle: /out"})
    with pytest.raises(GroupError) as caught:
        checkpoints.read_checkpoints(make_job(), nodes, "/out")
    assert [(problem.code, problem.node) for problem in caught.value.problems] == [("node_io", "b")]
    nodes[1].broken = NodeError("unreachable", "b")
    with pytest.raises(GroupError):
        checkpoints.set_aside(make_job(), nodes, "/out", [1], "x-")
