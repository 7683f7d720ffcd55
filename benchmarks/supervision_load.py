"""CPU of the collectors and of the gang monitor of a large run, per second of the run.

    python -m benchmarks.supervision_load [--nodes 128] [--seconds 60] [--spares] [--rounds 3] [--against CHECKOUT ...]

The nodes are files in memory (benchmarks/monitor_live.py), and the clock is simulated, so that a busy machine does not
change the work. Every second, each of 8 ranks of a node makes a step, each node is polled once, and the gang monitor
ticks once. Every node writes a heartbeat in every other second. The ranks make their 20th step while it measures, when
first_steps.py judges them. With --spares, the job has a spare, so that the monitor
also looks for a slow node. --against names other checkouts of this project: they take turns with this one in the same
run, each in a process of its own. The table shows the least of the rounds, because other work on the machine only adds
to it, and the ratio to this one.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from backend.estimate import estimate
from backend.job.mapping import dump_mapping
from backend.runs.collect.collector import Collector
from backend.runs.store import attempts, run_store
from backend.runs.store.store import Store
from backend.runs.supervise import restart
from backend.runs.supervise.gang_monitor import GangMonitor
from backend.runs.supervise.gang_rules import Timing
from benchmarks.monitor_live import GrowingNode
from tools.stored_runs import StoredRun

HERE = Path(__file__).parents[1]
RUN = "20260101-000000-load-0000"
GPUS = 8
WARM_UP_S = 10
PARTS = ("collectors", "gang monitor")


class SimulatedRun:
    """A running attempt of many nodes with its collectors and its gang monitor."""

    def __init__(self, home: Path, nodes: int, *, spares: bool) -> None:
        self.now = 1_750_000_000.0
        store = Store(home / "megaboard.db")
        run = StoredRun(store, RUN, now=self.now, nodes=nodes, gpus_per_node=GPUS, name="load")
        run.start()
        if spares:
            _add_spare(store)
        with store.read() as connection:
            records = attempts.nodes(connection, RUN, 1)
            estimate(run_store.job_of(connection, RUN))  # loads the presets, as a server has done
        self.nodes = [GrowingNode(record.rank, GPUS, record.folder) for record in records]
        self.collectors = [
            Collector(store, RUN, 1, record, list(node.ranks), self._clock)
            for record, node in zip(records, self.nodes, strict=True)
        ]
        self.monitor = GangMonitor(
            store=store,
            home=home,
            run=RUN,
            attempt=1,
            connect=lambda rank: self.nodes[rank],  # type: ignore[arg-type, return-value]
            connection=lambda rank: (60.0, None, 0.0),
            clock=self._clock,
            monotonic=self._clock,
            timing=Timing(),
        )

    def _clock(self) -> float:
        return self.now

    def second(self) -> tuple[float, float]:
        """Let one second pass. Return the CPU seconds of the collectors, and those of the gang monitor."""
        self.now += 1.0
        for node in self.nodes:
            node.grow(now=self.now)
        return _cpu_s(self._collect), _cpu_s(self._tick)

    def _collect(self) -> None:
        for collector, node in zip(self.collectors, self.nodes, strict=True):
            collector.poll(node)  # type: ignore[arg-type]

    def _tick(self) -> None:
        assert not self.monitor.tick(), "the attempt must not end"


def _add_spare(store: Store) -> None:
    def add(connection: sqlite3.Connection) -> None:
        (text,) = connection.execute("SELECT job FROM runs").fetchone()
        job = yaml.safe_load(text)
        job["cluster"]["spares"] = [{"address": "10.250.0.1"}]
        connection.execute("UPDATE runs SET job = ?", [dump_mapping(job)])
        restart.allow(connection, RUN, 1)

    store.write(add)


def measure(nodes: int, seconds: int, *, spares: bool) -> tuple[float, float]:
    """Return the CPU seconds per second of the collectors and of the gang monitor."""
    with tempfile.TemporaryDirectory() as folder:
        run = SimulatedRun(Path(folder), nodes, spares=spares)
        for _ in range(WARM_UP_S):
            run.second()
        costs = [run.second() for _ in range(seconds)]
    return sum(cost[0] for cost in costs) / seconds, sum(cost[1] for cost in costs) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--seconds", type=int, default=60, help="of the run, which take less time here")
    parser.add_argument("--spares", action="store_true", help="the job has a spare")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, nargs="+", default=[], metavar="CHECKOUT")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure(options.nodes, options.seconds, spares=options.spares)))
        return
    checkouts = [HERE, *options.against]
    costs: dict[Path, list[list[float]]] = {checkout: [] for checkout in checkouts}
    for _ in range(options.rounds):
        for checkout in checkouts:
            costs[checkout].append(_measure_checkout(checkout, options))
    print(
        f"{options.nodes} x {GPUS}, load {os.getloadavg()[0]:.1f}; least (and most) CPU seconds per second of the run"
    )
    for checkout, rounds in costs.items():
        print(_row(checkout, rounds, costs[HERE]))


def _measure_checkout(checkout: Path, options: argparse.Namespace) -> list[float]:
    """Run this file, in a process of its own, with the code of a checkout."""
    command = [sys.executable, "-c", _RUN_WITH, str(checkout.resolve()), str(HERE), "--once"]
    command += ["--nodes", str(options.nodes), "--seconds", str(options.seconds), *["--spares"] * options.spares]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd="/").stdout)


_RUN_WITH = """
import sys
checkout, here = sys.argv[1:3]
sys.path.insert(0, checkout)
import backend, tools  # of that checkout
sys.path.insert(0, here)
del sys.argv[1:3]
from benchmarks import supervision_load
supervision_load.main()
"""


def _row(checkout: Path, rounds: list[list[float]], ours: list[list[float]]) -> str:
    figures = []
    for part, name in enumerate(PARTS):
        cost, our_cost = (min(costs[part] for costs in rows) for rows in (rounds, ours))
        most = max(costs[part] for costs in rounds)
        figures.append(f"{name} {cost:.4f} ({most:.4f}), {our_cost / cost:.2f} x of it here")
    return f"{checkout}: {'; '.join(figures)}"


def _cpu_s(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
