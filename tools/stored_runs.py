"""Runs that are written directly into a store, as collectors and supervisors write them. They need no nodes."""

import json
import math
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from backend.job.mapping import dump_mapping
from backend.runs.records import NodeRecord
from backend.runs.states import EventKind
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.metrics import FileKey, FileOffset
from backend.runs.store.store import Store

TOTAL_STEPS = 400


class StoredRun:
    """One run in the store. The caller writes its events. Times are arguments, never a clock's."""

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        now: float,
        name: str = "qwen3-vl-8b-sft",
        nodes: int = 4,
        gpus_per_node: int = 1,
        addresses: Sequence[str] = (),
        attempted: bool = True,
        hostnames: Mapping[int, str] | None = None,
    ) -> None:
        self.store = store
        self.id = run
        self.addresses = list(addresses) or [f"10.{zlib.crc32(run.encode()) % 200}.0.{i + 1}" for i in range(nodes)]
        self.gpus_per_node = gpus_per_node
        self.now = now
        self.attempt = 1
        self._rendered = {"hostnames": hostnames or {}}
        self._offsets: dict[tuple[int, int, str], int] = {}
        cluster = {"gpu": "h100-80g", "nodes": nodes, "gpus_per_node": gpus_per_node}
        cluster["hosts"] = [dict(zip(("address", "port"), _split(address), strict=True)) for address in self.addresses]
        engine = "llamafactory-megatron"
        job = {"version": 1, "name": name, "cluster": cluster, "model": {"preset": "qwen3-vl-8b"}, "engine": engine}
        store.write(
            lambda c: run_store.create_run(
                c, run, name=name, engine=engine, job=dump_mapping(job), addresses=self.addresses, time=now
            )
        )
        if attempted:
            self.begin(None)

    def begin(self, checkpoint_step: int | None) -> None:
        records = [
            NodeRecord(rank=i, address=one, folder=f"/run/node{i}", python="/opt/python", mark=f"m.{i}")
            for i, one in enumerate(self.addresses)
        ]
        attempt = {
            "master": ("10.0.0.1", 29500),
            "rendered": self._rendered,
            "nodes": records,
            "checkpoint_step": checkpoint_step,
        }
        self.store.write(lambda c: attempts.create(c, self.id, self.attempt, time=self.now, **attempt))

    def restart(self, checkpoint_step: int | None = None, rank: int | None = None) -> None:
        """End the attempt by a node's failure and restart. Further writes belong to the new attempt."""
        self.add_event(EventKind.FAILING, rank)
        self.add_event(EventKind.RESTARTING, number=self.attempt, of=3)
        self.attempt += 1
        self.begin(checkpoint_step)
        self.start()

    def add_event(self, kind: EventKind, rank: int | None = None, **detail: Any) -> None:
        """Append an event."""
        self.store.write(lambda c: run_store.append(c, self.id, kind, time=self.now, rank=rank, detail=detail))

    def start(self) -> None:
        """Start all nodes."""
        self.add_event(EventKind.PREFLIGHT)
        self.add_event(EventKind.STARTING)
        for rank in range(len(self.addresses)):
            self.add_event(EventKind.NODE_STARTING, rank)
            self.add_event(EventKind.NODE_STARTED, rank)
        self.add_event(EventKind.STARTED)

    def steps(self, first: int, last: int, *, step_s: float = 0.9, attempt: int = 1, **fixed: Any) -> None:
        """Write steps first..last of rank 0 with a falling loss; `fixed` replaces values."""
        rows = [{**step_row(step, self.now, step_s), **fixed} for step in range(first, last + 1)]
        self.store.write(lambda c: metrics.add_points(c, self.id, attempt, 0, rows))
        self.now += step_s * len(rows)

    def beat(self, ranks: Sequence[int] | None = None) -> None:
        """Write a heartbeat of each node."""
        for rank in range(len(self.addresses)) if ranks is None else ranks:
            row = heartbeat(rank, self.gpus_per_node, self.now)
            self.store.write(
                lambda c, rank=rank, row=row: metrics.add_heartbeats(c, self.id, self.attempt, rank, [row], self.now)
            )

    def log(self, rank: int, file: str, data: bytes) -> None:
        """Append bytes to a log."""
        offset = self._offsets.get((self.attempt, rank, file), 0)
        key = FileKey(run=self.id, attempt=self.attempt, rank=rank, file=file)
        self.store.write(lambda c: metrics.add_log(c, key, FileOffset(offset=offset), data))
        self._offsets[self.attempt, rank, file] = offset + len(data)

    def exit(self, rank: int, **record: Any) -> None:
        """Store the exit of a node."""
        row = {"protocol": 1, "code": 0, "signal": None, "stopped": False, "reason": "finished", "left": [], **record}
        row["time"] = self.now
        self.store.write(lambda c: attempts.set_exit(c, self.id, self.attempt, rank, row))
        self.add_event(EventKind.NODE_EXITED, rank, **row)

    def stopped(self, rank: int, left: Sequence[int] = ()) -> None:
        """Write the supervisor's answer to `stop`. `left` has the ids of processes that no signal ends."""
        rows = [(pid, "python", "D") for pid in left]
        self.store.write(lambda c: attempts.set_stop(c, self.id, self.attempt, rank, {"left": rows}))
        self.add_event(EventKind.NODE_STOPPED, rank, left=rows)


def step_row(step: int, time: float, step_s: float) -> dict[str, Any]:
    """Return one line of steps.rank0.jsonl."""
    noise = random.Random(step)  # noqa: S311 - the same draws each time
    return {
        "step": step,
        "total_steps": TOTAL_STEPS,
        "time": time,
        "step_s": step_s * noise.uniform(0.93, 1.1),
        "loss": 1.2 + 2.4 * math.exp(-step / 60) + noise.gauss(0, 0.06),
        "grad_norm": 0.8 + 3 * math.exp(-step / 30) + abs(noise.gauss(0, 0.15)),
        "learning_rate": 2e-5 * min(1, step / 12) * 0.5 * (1 + math.cos(math.pi * step / TOTAL_STEPS)),
    }


def heartbeat(rank: int, gpus: int, now: float) -> Mapping[str, Any]:
    """Return one line of heartbeat.jsonl. A CPU node has no GPUs."""
    noise = random.Random(f"{rank} {now}")  # noqa: S311
    cards = [
        {
            "index": i,
            "utilization": noise.randint(86, 100),
            "memory_used_mib": noise.randint(60_000, 74_000),
            "memory_total_mib": 81_559,
            "power_w": noise.randint(560, 690),
            "temperature_c": noise.randint(52, 71),
        }
        for i in range(gpus)
    ]
    host = {"load1": round(noise.uniform(1, 14), 2), "memory_used_mib": noise.randint(90_000, 120_000)}
    host |= {"memory_total_mib": 2_063_000, "disk_free_mib": 1_800_000}
    return {"protocol": 1, "time": now, "members": [[100, 1]] * (gpus + 2), "gpus": cards, **host}


def problem(code: str, node: str, **values: Any) -> Mapping[str, Any]:
    """Return the `problem` of an event's detail."""
    return json.loads(json.dumps({"code": code, "node": node, "values": {"node": node, **values}}))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    return host, int(port or 22)
