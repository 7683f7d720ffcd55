"""The figures that a rank measures: its GPU's memory, and its last checkpoint."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from backend.node.training.rank_facts import GIB, masked_rows, memory, room


def torch_with(stats: dict[str, int], *, is_there: bool = True) -> SimpleNamespace:
    """Return a stand-in for torch with a GPU, because this machine has none."""
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: is_there, memory_stats=lambda: stats))


def test_memory_tells_the_peaks_and_how_often_the_allocator_tried_again() -> None:
    stats = {"allocated_bytes.all.peak": 3 * GIB, "reserved_bytes.all.peak": 4 * GIB, "num_alloc_retries": 7}
    assert memory(torch_with(stats)) == {"allocated_gib": 3.0, "reserved_gib": 4.0, "alloc_retries": 7}


def test_memory_that_nobody_allocated_of_has_no_peak_and_a_cpu_has_none_to_tell() -> None:
    assert memory(torch_with({})) == {"allocated_gib": 0.0, "reserved_gib": 0.0, "alloc_retries": 0}
    assert memory(torch_with({}, is_there=False)) == {}


def test_room_is_reported_by_the_first_rank_of_a_node_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "model").write_bytes(bytes(500))
    monkeypatch.setenv("LOCAL_RANK", "0")
    message = room(f"{tmp_path}/checkpoint-1")
    assert (message["checkpoint_bytes"], message["results_inode"]) == (500, tmp_path.stat().st_ino)
    assert room("") == {}
    assert room(f"{tmp_path}/checkpoint-2") == {}, "rotated away meanwhile"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert room(f"{tmp_path}/checkpoint-1") == {}


def test_rows_whose_labels_are_all_masked_are_counted() -> None:
    rows = [{"labels": [-100, -100]}, {"labels": [-100, 5]}, {"labels": [-100]}]
    assert masked_rows(rows) == {"masked_rows": (2, 3)}
    assert masked_rows([{"chosen_labels": [-100], "rejected_labels": [1]}]) == {"masked_rows": (1, 1)}
    assert masked_rows(rows * 100)["masked_rows"][1] == 32


def test_data_that_has_no_labels_or_cannot_be_read_by_index_says_nothing() -> None:
    assert masked_rows([{"text": "a"}]) == masked_rows([]) == masked_rows(None) == masked_rows(iter([])) == {}
