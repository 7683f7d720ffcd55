"""Nodes with their own disks: node 0 sends the missing files to two nodes over their own network."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.job.problems import ProblemsError
from backend.runs.controller import Controller
from backend.runs.store.store import Store
from backend.runs.tasks.file_copy import Missing, find_missing
from tests.chaos.lab import Lab

pytestmark = [pytest.mark.chaos]

LOCAL = "/run/local"
WEIGHTS = os.urandom(2 << 20)
FILES = {
    "model/config.json": b'{"model_type": "qwen3"}',
    "model/weights/1.safetensors": WEIGHTS,
    "data/dataset_info.json": json.dumps(
        {"mine": {"file_name": "mine.json"}, "other": {"file_name": "o.json"}}
    ).encode(),
    "data/mine.json": b"[]",
    "data/o.json": b"[1]",
}


class Copying:
    """A server with three nodes: FILES are on node 0, the model is on node 2, and node 1 has nothing."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.store = Store(folder / "megaboard.db")
        self.controller = Controller(folder, self.store, KnownHosts(lab.folder / "known_hosts"))
        self.job = _job(lab)
        self.told: list[tuple[int, int]] = []
        for name, content in FILES.items():
            self.write(0, name, content)
            if name.startswith("model"):
                self.write(2, name, content)

    def disk(self, rank: int) -> Path:
        """Return the path of a node's own disk as this process sees it."""
        return Path(f"/proc/{self.lab.init(rank)}/root{LOCAL}")

    def write(self, rank: int, name: str, content: bytes) -> None:
        path = self.disk(rank) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def files(self, rank: int) -> dict[str, bytes]:
        disk = self.disk(rank)
        return {str(path.relative_to(disk)): path.read_bytes() for path in disk.rglob("*") if path.is_file()}

    def missing(self) -> Missing | None:
        return self.lab.inside(lambda: find_missing(self.controller.preflight(self.job).checks))

    def copy(self) -> None:
        def act() -> None:
            report = self.controller.preflight(self.job)
            assert self.controller.tasks.copy_missing(self.job, report, lambda *far: self.told.append(far)) == ()

        self.lab.inside(act)


def _job(lab: Lab) -> Job:
    job, problems = parse_job(
        {
            "cluster": {
                "gpu": "cpu", "nodes": 3, "gpus_per_node": 1, "run_root": f"{LOCAL}/megaboard",
                "hosts": [
                    {"address": address, "user": "root", "identity_file": str(lab.identity_file)}
                    for address in lab.addresses
                ],
                "environments": {"llamafactory": {"python": sys.executable}},
            },
            "model": {"preset": "qwen3-8b", "path": f"{LOCAL}/model"},
            "engine": "llamafactory-ddp",
            "training": {
                "dataset": "mine", "dataset_dir": f"{LOCAL}/data", "template": "qwen3", "output_dir": f"{LOCAL}/out",
                "precision": "fp32",
            },
        }
    )  # fmt: skip
    assert job is not None, problems
    return job


@pytest.fixture
def copying(lab: Lab, folder: Path) -> Iterator[Copying]:
    (folder / "home").mkdir()
    new_copying = Copying(lab, folder / "home")
    yield new_copying
    new_copying.controller.close()
    new_copying.store.close()


@pytest.mark.worst
def test_what_nodes_lack_is_copied_and_nothing_else_is_left(copying: Copying) -> None:
    assert copying.missing() == Missing(model=(1,), info=(1, 2), data=(1, 2))
    copying.copy()
    assert copying.missing() is None
    expected = {name: content for name, content in FILES.items() if name != "data/o.json"}
    assert [copying.files(rank) for rank in (1, 2)] == [expected, expected]
    assert copying.files(0) == FILES
    for rank in range(3):
        assert copying.lab.processes(rank, "copy_files.py") == []


def test_a_file_that_differs_stays_and_its_node_is_named(copying: Copying) -> None:
    copying.write(2, "data/mine.json", b"[2]")
    with pytest.raises(ProblemsError) as raised:
        copying.copy()
    (problem,) = raised.value.problems
    assert (problem.code, problem.node) == ("copy_differs", copying.lab.addresses[2])
    assert problem.values["paths"] == [f"{LOCAL}/data/mine.json"]
    assert copying.files(2)["data/mine.json"] == b"[2]"
    assert "data/dataset_info.json" not in copying.files(2)


def test_an_interrupted_copy_leaves_no_process(copying: Copying) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    def act() -> None:
        report = copying.controller.preflight(copying.job)
        copying.controller.tasks.copy_missing(copying.job, report, interrupt)

    with pytest.raises(KeyboardInterrupt):
        copying.lab.inside(act)
    for rank in range(3):
        assert copying.lab.processes(rank, "copy_files.py") == []
        assert [name for name in copying.files(rank) if name.startswith("megaboard/")] == []
