"""A run in a store and its nodes in memory, with a clock that moves only when a test moves it."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.node import NodeError
from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.job.problems import Problem
from backend.runs.collect.collector import Collector
from backend.runs.collect.poller import Poller, record_connection, was_away
from backend.runs.controller import Controller
from backend.runs.records import Event, NodeRecord, Point, RunSnapshot
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.store import Store
from backend.runs.supervise.gang_monitor import GangMonitor
from backend.runs.supervise.gang_rules import Timing
from backend.runs.view.snapshot import snapshot
from tests.clock import Clock
from tests.fakes import FakeNode
from tests.nodes import ssh_nodes
from tests.runs.gangs import ENGINE, NODES, QUICK, stand_in_job

RUN = "20261121-120000-job-abcd"


@dataclass(kw_only=True)
class Gang:
    """One running attempt of `nodes` nodes, one rank each."""

    store: Store
    home: Path
    clock: Clock
    nodes: list[FakeNode]
    records: tuple[NodeRecord, ...]
    reports: list[tuple[int, bool]] = field(default_factory=list)
    pollers: list[Poller] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    record_reports: bool = False
    """Whether the reports of a poller are recorded with the run, as a server does it."""

    def collector(self, rank: int = 0, store: Store | None = None) -> Collector:
        """Return another collector of a node, as another process would have it."""
        return Collector(store or self.store, RUN, 1, self.records[rank], [rank], self.clock)

    def poller(self, rank: int) -> Poller:
        return Poller(
            self.collector(rank),
            lambda: self.nodes[rank],
            lambda error: self._report(rank, error),
            monotonic=self.clock,
            was_away=was_away(self.events(), 1, rank),
        )

    def _report(self, rank: int, error: NodeError | None) -> None:
        self.reports.append((rank, error is None))
        if self.record_reports:
            record_connection(self.store, RUN, 1, rank, error, self.clock.now)

    def monitor(self) -> GangMonitor:
        """Return the gang monitor of a freshly started server, with its pollers."""
        self.pollers = [self.poller(rank) for rank in range(len(self.nodes))]
        return GangMonitor(
            store=self.store,
            home=self.home,
            run=RUN,
            attempt=1,
            connect=lambda rank: self.nodes[rank],
            connection=lambda rank: self.pollers[rank].connection(),
            clock=self.clock,
            monotonic=self.clock,
            timing=self.timing,
        )

    def pass_time(self, monitor: GangMonitor, seconds: int) -> bool:
        """Let seconds pass. Each second polls every node and runs the monitor once. Return whether the run is over."""
        for _ in range(seconds):
            self.clock.now += 1.0
            for poller in self.pollers:
                if not poller.ended:
                    poller.step()
            if monitor.tick():
                return True
        return False

    def write(self, rank: int, file: str, *rows: Mapping[str, Any]) -> None:
        """Append JSON lines on a node."""
        path = f"{self.records[rank].folder}/{file}"
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        self.nodes[rank].files[path] = self.nodes[rank].files.get(path, b"") + lines

    def beat(self, *ranks: int) -> None:
        for rank in ranks:
            self.write(rank, "heartbeat.jsonl", {"time": self.clock.now, "members": [[1, 2]], "gpus": []})

    def exit(self, rank: int, code: int | None = 0, **more: object) -> None:
        """Write the exit file of a node's supervisor."""
        reason = "finished" if code == 0 else "failed"
        record = {"code": code, "stopped": False, "reason": reason, "left": [], "time": self.clock.now, **more}
        self.nodes[rank].files[f"{self.records[rank].folder}/exit"] = json.dumps(record).encode()

    def on_stop(self, rank: int, left: list[object] | None = None) -> None:
        """Make a node's supervisor answer `stop` and write its exit, as the real one does."""

        def reply(argv, stdin):  # type: ignore[no-untyped-def]
            if not left and f"{self.records[rank].folder}/exit" not in self.nodes[rank].files:
                self.exit(rank, None, stopped=True, reason="stopped")
            return FakeNode("x").on("x", reply={"left": left or []}).run(["x", *argv[-2:]], timeout_s=1)

        self.nodes[rank].on("stop", reply=reply)

    def break_link(self, rank: int) -> None:
        self.nodes[rank].broken = NodeError("unreachable", self.nodes[rank].name, address="x", port=22, detail="down")

    def add_event(self, kind: EventKind, rank: int | None = None, **detail: object) -> bool:
        return self.store.write(lambda c: run_store.append(c, RUN, kind, time=self.clock.now, rank=rank, detail=detail))

    def state(self) -> RunState | None:
        with self.store.read() as connection:
            return run_store.state_of(connection, RUN)

    def snapshot(self) -> RunSnapshot:
        with self.store.read() as connection:
            return snapshot(connection, RUN, self.clock.now)

    def cause(self) -> Problem | None:
        with self.store.read() as connection:
            return run_store.cause_of(connection, RUN)

    def events(self) -> list[Event]:
        with self.store.read() as connection:
            return run_store.events(connection, RUN)

    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events()]

    def points(self, rank: int | None = 0) -> list[Point]:
        with self.store.read() as connection:
            return metrics.points(connection, RUN, rank=rank)


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a home folder, in memory if possible, because thousands of durable commits are slow on a disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    store = Store(home / "megaboard.db")
    yield store
    store.close()


@pytest.fixture
def gang(store: Store, home: Path) -> Gang:
    """Return a gang of three running nodes."""
    return make_gang(store, home)


def make_gang(store: Store, home: Path, spares: str = "") -> Gang:
    """Return a gang of three running nodes in a store. Tests that need several gangs call it."""
    nodes = [FakeNode(f"10.0.0.{rank + 1}") for rank in range(3)]
    records = tuple(
        NodeRecord(rank=rank, address=f"{node.name}:22", folder=f"/r/node{rank}", python="/py", mark=f"m.{rank}")
        for rank, node in enumerate(nodes)
    )
    gang = Gang(store=store, home=home, clock=Clock(1000.0), nodes=nodes, records=records)
    hosts = ", ".join(f"{{address: {node.name}}}" for node in nodes)
    cluster = f"{{gpu: cpu, nodes: 3, gpus_per_node: 1, hosts: [{hosts}], spares: [{spares}]}}"
    job = f"version: 1\nname: job\ncluster: {cluster}\nengine: llamafactory-ddp\n"

    def write(connection):  # type: ignore[no-untyped-def]
        run_store.create_run(connection, RUN, name="job", engine="e", job=job, addresses=["a", "b", "c"], time=1000.0)
        attempts.create(connection, RUN, 1, master=("10.0.0.1", 29500), rendered={}, nodes=records, time=1000.0)

    store.write(write)
    for rank, node in enumerate(nodes):
        node.make_folder(f"/r/node{rank}/control")
        node.files[f"/r/node{rank}/supervisor.py"] = b"#"
        gang.on_stop(rank)
        node.on("status", reply={"supervisor": True, "members": [], "exit": None})
    for kind in (EventKind.PREFLIGHT, EventKind.STARTING, EventKind.STARTED):
        gang.add_event(kind)
    return gang


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    with ssh_nodes(tmp_path_factory.mktemp("cluster"), nodes=NODES) as demo:
        yield demo


@pytest.fixture(scope="module")
def job(cluster: LocalNodes) -> Job:
    """Return a job whose Python has the stand-in engine."""
    mapping = stand_in_job(cluster.folder, f'PYTHONPATH={ENGINE} exec {sys.executable} -S -B "$@"')
    parsed, problems = parse_job({**mapping, "cluster": cluster.cluster_mapping(f"{cluster.folder}/python")})
    assert parsed is not None, problems
    return parsed


@pytest.fixture
def open_controller(home: Path, cluster: LocalNodes) -> Iterator[Callable[..., Controller]]:
    """Return a function that opens controllers of one home folder with confirmed host keys and short timeouts."""
    (home / "known_hosts").write_text((cluster.folder / "known_hosts").read_text())
    opened: list[tuple[Controller, Store]] = []

    def make(timing: Timing = QUICK, **more: Any) -> Controller:
        store = Store(home / "megaboard.db")
        controller = Controller(home, store, KnownHosts(home / "known_hosts"), timing=timing, **more)
        opened.append((controller, store))
        return controller

    yield make
    for controller, store in opened:
        controller.close()
        store.close()


@pytest.fixture
def controller(open_controller: Callable[..., Controller]) -> Controller:
    return open_controller()
