"""The monitor page and the collectors of a live run of many nodes in one process (see monitor_load.py).

    python -m benchmarks.monitor_live PORT HOME TICK_S PASSWORD RUN

The nodes are files in memory. Every second they grow by the output of a supervisor and its ranks. All code from the
collector on is real.
"""

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

from backend.cluster.node import NodeError
from backend.runs.collect.collector import Collector
from backend.runs.records import NodeRecord
from backend.runs.store import attempts, run_store
from backend.runs.store.store import Store
from tools import monitor_server
from tools.stored_runs import heartbeat, step_row

POLL_S = 1.0
BEAT_EVERY = 2


class GrowingNode:
    """The run folder of one node in memory, with only the files that a collector reads."""

    def __init__(self, rank: int, gpus: int, folder: str) -> None:
        self.rank, self.folder = rank, folder
        self.ranks = range(rank * gpus, (rank + 1) * gpus)
        self.files: dict[str, bytearray] = {}
        self.seconds = 0

    def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        data = self.files.get(path.removeprefix(f"{self.folder}/"))
        if data is None:
            raise NodeError("missing_file", str(self.rank))
        return bytes(data[max(0, offset) : max(0, offset) + limit])

    def grow(self, *, beats: bool = True, now: float | None = None) -> None:
        """Write one second of training: a step of every rank and its log line; a heartbeat every other second."""
        self.seconds += 1
        now = time.time() if now is None else now
        row = {**step_row(self.seconds, now, 1.0), "total_steps": 100_000, "allocated_gib": 60.0, "reserved_gib": 66.0}
        line = json.dumps(row).encode() + b"\n"
        for rank in self.ranks:
            self._append(f"steps.rank{rank}.jsonl", line)
            self._append(f"rank{rank}.log", b"{'loss': 1.234, 'grad_norm': 0.9, 'learning_rate': 1e-05}\n")
        if beats and self.seconds % BEAT_EVERY == 0:
            beat: dict[str, Any] = dict(heartbeat(self.rank, len(self.ranks), now))
            beat |= {"wrote": now, "worked": [[rank, now] for rank in self.ranks]}
            self._append("heartbeat.jsonl", json.dumps(beat).encode() + b"\n")

    def _append(self, name: str, data: bytes) -> None:
        self.files.setdefault(name, bytearray()).extend(data)


class Poller:
    """Run one thread that polls a node every second, as poller.py does."""

    def __init__(self, store: Store, run: str, record: NodeRecord, gpus: int) -> None:
        self.node = GrowingNode(record.rank, gpus, record.folder)
        self.collector = Collector(store, run, 1, record, list(self.node.ranks), time.time)

    def work(self) -> None:
        time.sleep(POLL_S * (self.node.rank % 16) / 16)
        while True:
            start = time.monotonic()
            self.node.grow()
            self.collector.poll(self.node)  # type: ignore[arg-type]
            time.sleep(max(0.0, POLL_S - (time.monotonic() - start)))


def main(port: int, home: Path, tick_s: float, password: str, run: str) -> None:
    store = Store(home / "megaboard.db")
    with store.read() as connection:
        records = attempts.nodes(connection, run, 1)
        gpus = run_store.job_of(connection, run).cluster.gpus_per_node
    for record in records:
        threading.Thread(target=Poller(store, run, record, gpus).work, daemon=True).start()
    monitor_server.main(port, home, tick_s, password)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, kind in (("port", int), ("home", Path), ("tick_s", float), ("password", str), ("run", str)):
        parser.add_argument(name, type=kind)
    main(**vars(parser.parse_args()))
