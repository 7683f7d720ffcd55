"""Growth of the database during a run of many ranks.

    python -m benchmarks.store_growth [--nodes 32] [--gpus 8] [--step 5] [--hours 2]

Every ten seconds, the rows of each node are stored in one transaction, as a collector does: the steps of all its ranks,
five heartbeats, and one log line per step from rank 0. The growth per day is computed from the second half of the run,
when the store has reached the limits of the data that it prunes.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from backend.runs.store import metrics
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun, heartbeat, step_row

POLL_S, BEAT_S = 10, 2
RUN = "20270115-080000-qwen3-30b-a3b-sft-1a2b"
START = 1_800_000_000


def main() -> None:
    """Print the configuration and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind, value in (("nodes", int, 32), ("gpus", int, 8), ("step", float, 5.0), ("hours", float, 2.0)):
        parser.add_argument(f"--{name}", type=kind, default=value)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({**vars(chosen), **grow(Path(folder), chosen)}, indent=1))


def grow(folder: Path, chosen: argparse.Namespace) -> dict[str, float]:
    """Store some hours of a run in a new store."""
    store = Store(folder / "megaboard.db")
    run = StoredRun(store, RUN, now=START, nodes=chosen.nodes, gpus_per_node=chosen.gpus)
    run.start()
    total = round(chosen.hours * 3600)
    began, sizes = time.process_time(), []
    for now in range(POLL_S, total + 1, POLL_S):
        for node in range(chosen.nodes):
            store.write(lambda c, node=node, now=now: _store_poll(c, node, now, chosen))
        if now in (total // 2 // POLL_S * POLL_S, total):
            sizes.append(_bytes(store))
    growth = (sizes[1] - sizes[0]) * 86400 / (total / 2)
    cpu_s = time.process_time() - began
    store.close()
    return {
        "database_mb": sizes[1] / 1e6,
        "growth_mb_per_day": growth / 1e6,
        "cpu_s_per_hour": cpu_s / chosen.hours,
    }


def _store_poll(connection, node, now, chosen) -> None:  # type: ignore[no-untyped-def]
    times = range(now - POLL_S + BEAT_S, now + 1, BEAT_S)
    beats = [heartbeat(node, chosen.gpus, START + time) for time in times]
    metrics.add_heartbeats(connection, RUN, 1, node, beats, START + now)
    steps = range(int((now - POLL_S) / chosen.step) + 1, int(now / chosen.step) + 1)
    for local in range(chosen.gpus):
        rows = [
            {**step_row(step, START + step * chosen.step, chosen.step), "allocated_gib": 61.2, "reserved_gib": 66.4}
            for step in steps
        ]
        metrics.add_points(connection, RUN, 1, node * chosen.gpus + local, rows)
        if node == local == 0:
            for step in steps:
                key = metrics.FileKey(run=RUN, attempt=1, rank=0, file="rank0.log")
                metrics.add_log(connection, key, metrics.FileOffset(offset=200 * step), b"x" * 200)


def _bytes(store: Store) -> int:
    with store.read() as connection:
        size, count, free = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        )
    return int(size * (count - free))


if __name__ == "__main__":
    main()
