"""If several starters find a node's lock stale at once, one takes the node, and the others learn who has it."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from backend.node.supervisor import locks
from backend.node.supervisor.processes import boot_id, own_start

STALE = {"pid": 1 << 22, "start": 1, "boot": "of another day", "mark": "stale.0"}


def mine(run: str) -> dict[str, Any]:
    return {"pid": os.getpid(), "start": own_start(), "boot": boot_id(), "mark": f"{run}.0", "run": run}


def test_a_stale_lock_that_another_has_just_taken_away_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "node"
    locks.write_json(str(lock), STALE)
    look = locks.holder

    def look_and_lose(path: str) -> dict[str, Any] | None:
        result = look(path)
        lock.unlink(missing_ok=True)
        return result

    monkeypatch.setattr(locks, "holder", look_and_lose)
    assert locks.take_lock(str(lock), mine("one")) is None
    monkeypatch.undo()
    assert (locks.holder(str(lock)) or {})["run"] == "one"


@pytest.mark.parametrize("attempt", range(5))
def test_of_many_starters_one_takes_the_node(tmp_path: Path, attempt: int) -> None:
    lock = str(tmp_path / "node")
    locks.write_json(lock, STALE)
    answers: dict[str, Any] = {}
    ready = threading.Barrier(8)

    def start(run: str) -> None:
        ready.wait()
        answers[run] = locks.take_lock(lock, mine(run))

    starters = [threading.Thread(target=start, args=(str(number),)) for number in range(8)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    (winner,) = (run for run, held in answers.items() if held is None)
    assert {held["run"] for held in answers.values() if held} == {winner}
    assert len(answers) == 8
    assert os.listdir(tmp_path) == ["node"]


def test_a_disk_without_hard_links_can_hold_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Object stores and network shares that are mounted as a folder often have none."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    lock = tmp_path / "node"
    assert locks.take_lock(str(lock), mine("one")) is None
    assert (locks.take_lock(str(lock), mine("two")) or {})["run"] == "one"
    assert os.listdir(tmp_path) == ["node"]
