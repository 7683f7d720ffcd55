"""A server and a gang on a lab's nodes: it launches, waits for steps, and records the outcome of a fault."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.node.supervisor.processes import members
from backend.runs.controller import Controller
from backend.runs.records import Event, NodeRecord
from backend.runs.states import RunState
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.metrics import STEPS_KEPT
from backend.runs.store.store import Store
from backend.runs.supervise.gang_rules import Timing
from tests.chaos.lab import Lab
from tests.fault_table import Row, add_row
from tests.runs.gangs import stand_in_job
from tests.waiting import WITHIN_S, wait_for
from tools.programs import NODE_PYTHON

NODES = 3
ENGINES = Path(__file__).parent
STAND_INS = ENGINES.parent / "runs/engine"
TRAINERS = ("fake", "torchrun")
"""A program that only writes what ranks write, and real torchrun whose ranks all-reduce over gloo."""


class Scene:
    """One home folder, one server, one run at a time. All of its connections are in the lab's network."""

    def __init__(self, lab: Lab, folder: Path, trainer: str, **cluster: Any) -> None:
        self.lab = lab
        self.home = folder / "home"
        self.home.mkdir()
        shutil.copy(lab.folder / "known_hosts", self.home)
        self.trainer = trainer
        self.job = _job(lab, folder, trainer, cluster)
        self.timing = Timing(grace_s=3.0)
        self.opened: list[tuple[Controller, Store]] = []
        self.run = ""
        self.began = 0.0

    def open(self, watch: bool = True) -> Controller:
        """Start a server. A second call starts a second server."""
        store = Store(self.home / "megaboard.db")
        known = KnownHosts(self.home / "known_hosts")
        controller = Controller(self.home, store, known, timing=self.timing)
        self.opened.append((controller, store))
        if watch:
            controller.start()
        return controller

    @property
    def controller(self) -> Controller:
        return self.opened[-1][0] if self.opened else self.open()

    def launch(self, *, steps: int = 100_000, step_s: float = 0.05, after: int = 3, **values: Any) -> str:
        """Start the run and wait until every rank has done `after` steps."""
        variables = {"TRAINER_STEPS": str(steps), "TRAINER_STEP_S": str(step_s)}
        variables |= values.pop("environment", {})
        self.run = self.controller.launch(with_values(self.job, {"environment": variables, **values}))
        self.wait_for_steps(after)
        return self.run

    def wait_for_steps(self, count: int) -> None:
        wait_for(lambda: all(len(self.stored(rank)) >= count for rank in range(self.lab.nodes)))

    def strike(self, fault: Callable[[], object]) -> None:
        """Cause the fault now."""
        self.began = time.time()
        fault()

    def end(self, within_s: float = WITHIN_S) -> RunState:
        """Wait for the end of the run and return its state."""
        state = self.controller.wait(self.run, within_s)
        assert state.is_final, (state, [event.kind.value for event in self.events()])
        return state

    def events(self) -> list[Event]:
        with self.opened[-1][1].read() as connection:
            return run_store.events(connection, self.run)

    def attempts(self) -> dict[int, tuple[NodeRecord, ...]]:
        """Return the nodes of every attempt."""
        with self.opened[-1][1].read() as connection:
            numbers = range(1, attempts.newest(connection, self.run) + 1)
            return {number: attempts.nodes(connection, self.run, number) for number in numbers}

    def stored(self, rank: int, attempt: int = 1) -> list[int]:
        """Return the steps of a rank in the store."""
        with self.opened[-1][1].read() as connection:
            points = metrics.points(connection, self.run, rank=rank)
        return [point.step for point in points if point.attempt == attempt]

    def on_disk(self, record: NodeRecord) -> list[int]:
        """Return the steps of a node's rank in its file."""
        folder, rank = record.folder, record.rank
        if folder.startswith("/run/local"):
            folder = str(self.lab.disk(rank)) + folder.removeprefix("/run/local")
        file = Path(folder) / f"steps.rank{rank}.jsonl"
        whole = file.read_bytes().rpartition(b"\n")[0] if file.exists() else b""
        return [json.loads(line)["step"] for line in whole.splitlines()]

    def left(self) -> list[str]:
        """Return the living processes with the run's mark on all nodes."""
        marks = [record.mark for records in self.attempts().values() for record in records]
        return [process.name for mark in marks for process in members(mark)]

    def conclude(
        self,
        fault: str,
        *,
        state: RunState,
        cause: str | None = None,
        culprit: int | None = None,
        detected_within_s: float | None = None,
        points: bool = True,
    ) -> Row:
        """Add the row to the table and assert all of it except the seconds. `points` says that every node is back."""
        if points:
            wait_for(lambda: self._lost() == 0, 60.0)
        wait_for(lambda: not self.left(), 60.0)
        shown = self.controller.snapshot(self.run)
        lost = self._lost() if points else 0
        doubled = sum(len(steps) - len(set(steps)) for _, steps in self._steps())
        row = add_row(fault, self.trainer, shown, self.began, left=len(self.left()), lost=lost, doubled=doubled)
        story = [(event.kind.value, event.rank, event.detail.get("problem")) for event in self.events()]
        assert shown.state is state, story
        assert (shown.cause.code if shown.cause else None) == cause, (shown.cause, story)
        assert row.culprit == ("" if culprit is None else self.lab.addresses[culprit]), (shown.cause, story)
        assert (row.left, row.lost, row.doubled) == (0, 0, 0), row
        if detected_within_s is not None:
            assert row.detected_s is not None, row
            assert row.detected_s < detected_within_s, row
        return row

    def _lost(self) -> int:
        """Return the steps that a node wrote and the store does not have. Of ranks other than 0 the store keeps only
        the newest."""
        lost = 0
        for record, stored in self._steps():
            oldest = max(stored, default=0) - STEPS_KEPT if record.rank else 0
            lost += len({step for step in self.on_disk(record) if step > oldest} - set(stored))
        return lost

    def _steps(self) -> list[tuple[NodeRecord, list[int]]]:
        """Return the nodes of every attempt, and the stored steps of each."""
        all_of_them = self.attempts().items()
        return [(record, self.stored(record.rank, number)) for number, records in all_of_them for record in records]

    def close(self) -> None:
        for controller, store in self.opened:
            controller.close()
            store.close()


@contextmanager
def scene(lab: Lab, folder: Path, trainer: str = "fake", **cluster: Any) -> Iterator[Scene]:
    """Yield a Scene, and close it at the end."""
    new_scene = Scene(lab, folder, trainer, **cluster)
    try:
        yield new_scene
    finally:
        new_scene.close()


def _job(lab: Lab, folder: Path, trainer: str, cluster: dict[str, Any]) -> Job:
    """Return a job whose Python has a stand-in engine, under the stand-in torchrun or the real one."""
    if trainer == "fake":
        path, program, options = f"{ENGINES}/engine:{STAND_INS}", sys.executable, "-S -B"
    else:
        path, program, options = f"{ENGINES}/torch_engine", str(NODE_PYTHON), "-B"
    mapping = stand_in_job(folder, f'PYTHONPATH={path} exec {program} {options} "$@"')
    hosts = [{"address": address, "user": "root", "identity_file": str(lab.identity_file)} for address in lab.addresses]
    mapping["cluster"] = {
        "gpu": "cpu",
        "nodes": lab.nodes,
        "gpus_per_node": 1,
        "run_root": str(folder / "runs"),
        "hosts": hosts,
        "environments": {"llamafactory": {"python": f"{folder}/python"}},
        **cluster,
    }
    parsed, problems = parse_job(mapping)
    assert parsed is not None, problems
    return parsed
