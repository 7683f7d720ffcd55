"""Alerts from steps: a disk that fills up, and GPU memory that runs short."""

from backend.runs.diagnosis.alerts import GIB
from backend.runs.states import EventKind
from tests.runs.conftest import Gang


def save(gang: Gang, rank: int, step: int, *, free: float, size: float = 10, inode: int = 5) -> None:
    """Write a step of a node's rank after a save, and read it at once. Sizes are in GiB."""
    row = {"step": step, "time": float(step), "free_bytes": int(free * GIB), "checkpoint_bytes": int(size * GIB)}
    gang.write(rank, f"steps.rank{rank}.jsonl", {**row, "results_inode": inode})
    gang.collector(rank).poll(gang.nodes[rank])


def told(gang: Gang, kind: EventKind) -> list[tuple[int | None, object]]:
    return [(event.rank, event.detail["step"]) for event in gang.events() if event.kind is kind]


def test_a_disk_with_room_for_fewer_than_two_checkpoints_is_reported_and_again_for_fewer_than_one(gang: Gang) -> None:
    save(gang, 0, 10, free=20)
    assert told(gang, EventKind.DISK_LOW) == []
    for step, free in ((20, 19.9), (30, 12.0), (40, 0), (50, 9.0), (60, 15.0)):
        save(gang, 0, step, free=free)
    assert told(gang, EventKind.DISK_LOW) == [(0, 20), (0, 40)]
    first = next(event for event in gang.events() if event.kind is EventKind.DISK_LOW)
    assert (round(first.detail["free_gib"], 1), first.detail["checkpoint_gib"]) == (19.9, 10.0)


def test_nodes_that_share_a_disk_tell_of_it_once_and_others_each_of_its_own(gang: Gang) -> None:
    save(gang, 0, 20, free=15, inode=5)
    save(gang, 1, 20, free=15, inode=5)
    assert told(gang, EventKind.DISK_LOW) == [(0, 20)]
    save(gang, 1, 30, free=15, inode=6)
    assert told(gang, EventKind.DISK_LOW) == [(0, 20), (1, 30)]


def test_a_checkpoint_without_bytes_says_nothing(gang: Gang) -> None:
    save(gang, 0, 20, free=0, size=0)
    assert told(gang, EventKind.DISK_LOW) == []


def test_gpu_memory_that_runs_short_is_reported_once_a_node(gang: Gang) -> None:
    for rank, step, retries in ((1, 1, 0), (1, 2, 3), (1, 3, 9), (0, 4, 1)):
        gang.write(rank, f"steps.rank{rank}.jsonl", {"step": step, "time": float(step), "alloc_retries": retries})
        gang.collector(rank).poll(gang.nodes[rank])
    assert told(gang, EventKind.ALLOC_RETRIES) == [(1, 2), (0, 4)]
    detail = next(event.detail for event in gang.events() if event.kind is EventKind.ALLOC_RETRIES)
    assert (detail["of_rank"], detail["retries"]) == (1, 3)
