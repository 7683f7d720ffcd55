"""A server beside a Slurm cluster, and jobs for it: with a stand-in engine, or with LLaMA-Factory."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.demo import tiny_model
from app.demo.job import demo_job
from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.node.supervisor.processes import members
from backend.runs.controller import Controller
from backend.runs.records import Event
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, run_store
from backend.runs.store.store import Store
from backend.runs.supervise.gang_rules import Timing
from tests.chaos.scene import ENGINES, STAND_INS
from tests.fault_table import add_row
from tests.runs.gangs import stand_in_job
from tests.slurm.cluster import SlurmCluster
from tests.waiting import wait_for
from tools.programs import NODE_PYTHON

TIMING = Timing(poll_s=0.3, grace_s=3.0, scheduler_s=1.0)


class Server:
    """A home folder and its controller, whose connections are in the cluster's network."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        shutil.copy(cluster.folder / "known_hosts", self.home)
        self.store: Store
        self.controller: Controller
        self.open()

    def open(self) -> None:
        """Start a server."""
        self.store = Store(self.home / "megaboard.db")
        known = KnownHosts(self.home / "known_hosts")
        self.controller = Controller(self.home, self.store, known, timing=TIMING)
        self.controller.start()

    def close(self) -> None:
        """Stop the server. Its runs go on."""
        self.controller.close()
        self.store.close()

    def events(self, run: str) -> list[Event]:
        with self.store.read() as connection:
            return run_store.events(connection, run)

    def scheduler_states(self, run: str) -> list[str]:
        """Return the states of Slurm's jobs of the run, in order."""
        return [event.detail["state"] for event in self.events(run) if event.kind is EventKind.SCHEDULER]

    def wait_for_step(self, run: str, step: int, within_s: float = 300) -> None:
        def reached() -> bool:
            shown = self.controller.snapshot(run)
            assert not shown.state.is_final, (shown.state, shown.cause, self.story(run))
            return (shown.step or 0) >= step

        wait_for(reached, within_s)

    def end(self, run: str, within_s: float = 300) -> RunState:
        """Wait for the end of the run, and assert that no process of it is left on any node."""
        state = self.controller.wait(run, within_s)
        assert state.is_final, (state, self.story(run))
        assert self.left(run) == []
        return state

    def conclude(self, run: str, fault: str, began: float) -> None:
        """Add a row to the table of faults."""
        add_row(fault, "slurm", self.controller.snapshot(run), began, left=len(self.left(run)))

    def left(self, run: str) -> list[str]:
        """Return the living processes of all attempts, from the process table of this machine."""
        with self.store.read() as connection:
            numbers = range(1, attempts.newest(connection, run) + 1)
            records = [record for number in numbers for record in attempts.nodes(connection, run, number)]
        return [process.name for record in records for process in members(record.mark)]

    def story(self, run: str) -> list[Any]:
        return [(event.kind.value, event.rank, dict(event.detail)) for event in self.events(run)]


@contextmanager
def server(cluster: SlurmCluster, folder: Path) -> Iterator[Server]:
    """Yield a running server. Call it inside the cluster's network."""
    new_server = Server(cluster, folder)
    try:
        yield new_server
    finally:
        new_server.close()


def inside(cluster: SlurmCluster, folder: Path, story: Callable[[Server], None]) -> None:
    """Run `story` with a server in the cluster's network."""

    def run() -> None:
        with server(cluster, folder) as new_server:
            story(new_server)

    cluster.inside(run)


def cluster_mapping(cluster: SlurmCluster, folder: Path, python: str, **scheduler: Any) -> dict[str, Any]:
    """Return the job file's `cluster`."""
    login = {"address": cluster.addresses[0], "user": "root", "identity_file": str(cluster.identity_file)}
    return {
        "gpu": "cpu",
        "nodes": len(cluster.compute),
        "gpus_per_node": 1,
        "run_root": str(folder / "runs"),
        "scheduler": {"kind": "slurm", "login": login, **scheduler},
        "environments": {"llamafactory": {"python": python}},
    }


def quick_job(cluster: SlurmCluster, folder: Path, *, steps: int = 20, step_s: float = 0.05, **scheduler: Any) -> Job:
    """Return a job whose engine is a stand-in that trains nothing: ranks in lockstep over TCP."""
    path = f"{ENGINES}/engine:{STAND_INS}"
    mapping = stand_in_job(folder, f'PYTHONPATH={path} exec {sys.executable} -S -B "$@"')
    mapping["cluster"] = cluster_mapping(cluster, folder, f"{folder}/python", **scheduler)
    mapping["environment"] = {"TRAINER_STEPS": str(steps), "TRAINER_STEP_S": str(step_s)}
    return parsed(mapping)


def tiny_job(cluster: SlurmCluster, folder: Path, *, steps: int, **scheduler: Any) -> Job:
    """Return a job that really trains the demo's tiny model with LLaMA-Factory."""
    subprocess.run([NODE_PYTHON, tiny_model.__file__, folder], check=True, capture_output=True, timeout=300)
    mapping = demo_job(folder, cluster_mapping(cluster, folder, str(NODE_PYTHON), **scheduler))
    mapping["training"] |= {"max_steps": steps, "save_steps": 1000}
    return parsed(json.loads(json.dumps(mapping)))


def parsed(mapping: dict[str, Any]) -> Job:
    job, problems = parse_job(mapping)
    assert job is not None, problems
    return job
