"""Load of the server by long runs and many tabs: seconds per response, CPU and memory, over real HTTP.

    python -m benchmarks.monitor_load [--points 1000000] [--runs 3] [--tabs 50] [--ticks 10] [--part long|live|store]

Each part starts the real page and its log-in in a process of its own (tools/monitor_server.py). Each tab polls it every
two seconds with the versions that it already has, as static/monitor/monitor.js does.

- store: CPU to store a step of rank 0, in batches as after a backlog, and one at a time as in a live run.
- long: finished runs of --points steps: the first view after a start, the next tab, then all tabs at once.
- live: 128 nodes x 8 GPUs that train while all tabs watch. Their collectors work inside the server.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from backend.node.supervisor.processes import read_stat
from backend.runs.collect.collector import Collector
from backend.runs.states import EventKind
from backend.runs.store import attempts, metrics
from backend.runs.store.store import Store
from benchmarks.monitor_live import GrowingNode
from tools.browser import PASSWORD, Server
from tools.stored_runs import StoredRun

TICK_S = 2.0
TIMEOUT_S = 45.0
"""Three times the interval at which the page polls."""
BATCH = 5000
"""Steps in a megabyte of a steps file, which one poll reads."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LIVE = "20260101-000000-live-0000"


class Served(Server):
    """Run the monitor page; with `live`, also the collectors of a live run in the same process."""

    def __init__(self, home: Path, live: str = "") -> None:
        super().__init__(home)
        self.live = live

    def command(self) -> list[str]:
        module = "benchmarks.monitor_live" if self.live else "tools.monitor_server"
        arguments = [str(self.port), str(self.home), str(TICK_S), PASSWORD, *filter(None, [self.live])]
        return [sys.executable, "-m", module, *arguments]

    def cpu_s(self) -> float:
        fields = read_stat(self.process.pid)[1]
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def peak_mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


class Tab:
    """Handle a poll response as the browser does, as far as the next poll depends on it."""

    def __init__(self, client: httpx.AsyncClient, poll: dict[str, Any], run: str) -> None:
        self.client, self.poll, self.run = client, poll, run
        self.seen: dict[str, str] = {}
        self.points: dict[str, Any] = {}
        self.log: dict[str, Any] = {"attempt": None, "node": 0, "file": None, "end": None}
        self.have: dict[str, Any] = {}
        self.measure: str | None = None
        self.ticks = 0
        self.last = 0

    async def tick(self) -> float:
        poll_request: dict[str, Any] = {"run": self.run, "seen": self.seen, "points": self.points, "log": self.log}
        if self.ticks % 5 == 0:
            poll_request["usage"] = {"measure": self.measure, "have": self.have}
        self.ticks += 1
        body = {"data": [], "event_data": {"question": poll_request}, **self.poll}
        start = time.perf_counter()
        try:
            response = await self.client.post("/en/gradio_api/run/predict", json=body)
        except httpx.TimeoutException:
            return TIMEOUT_S
        seconds = time.perf_counter() - start
        response.raise_for_status()
        self.last = len(response.content)
        value = response.json()["data"][0]
        if isinstance(value, str):
            self._take(json.loads(value))
        return seconds

    def _take(self, response: dict[str, Any]) -> None:
        if "error" in response:
            raise RuntimeError(response["error"])
        self.seen.update(response.get("versions", {}))
        if points := response.get("points"):
            self.points = {key: points[key] for key in ("generation", "seq")}
        log = response.get("log") or {}
        if log.get("end") is not None:
            self.log |= {key: log[key] for key in ("file", "end")}
        if utilization := response.get("usage"):
            self.measure = utilization["measure"]
            self.have.update({str(node["rank"]): node["have"] for node in utilization["nodes"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000, help="steps of each long run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tabs", type=int, default=50)
    parser.add_argument("--ticks", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=128, help="of the live run, eight GPUs each")
    parser.add_argument("--part", choices=("store", "long", "live"), help="only this one")
    parser.add_argument("--home", type=Path, help="keep the long runs here, and use those that are here")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as folder:
        if options.part in (None, "store"):
            _store(Path(folder) / "store")
        if options.part in (None, "long"):
            _long(options.home or Path(folder) / "long", options)
        if options.part in (None, "live"):
            _live(Path(folder) / "live", options)


def _store(home: Path) -> None:
    """Return the CPU time of this process to collect one node of eight ranks: the minimum of a few rounds."""
    store = Store(home / "megaboard.db")
    run = StoredRun(store, LIVE, now=time.time(), nodes=1, gpus_per_node=8)
    with store.read() as connection:
        (record,) = attempts.nodes(connection, run.id, 1)
    node = GrowingNode(0, 8, record.folder)
    collector = Collector(store, run.id, 1, record, list(node.ranks), time.time)

    def poll(seconds: int, polls: int, *, beats: bool) -> float:
        for _ in range(seconds):
            node.grow(beats=beats)
        start = time.process_time()
        for _ in range(polls):
            collector.poll(node)  # type: ignore[arg-type]
        return time.process_time() - start

    # Five polls read every rank once (node_files.OTHER_RANKS_EVERY).
    backlog = [poll(BATCH, 10, beats=False) for _ in range(5)]
    live = [sum(poll(1, 1, beats=True) for _ in range(100)) for _ in range(5)]
    print(f"store: {1e6 * min(backlog) / BATCH:.0f} us of CPU a step of 8 ranks in a backlog of {BATCH:,}", end="; ")
    print(f"{1e6 * min(live) / 100:,.0f} us a poll of a live node, a step each (fsync included)")
    store.close()


def _long(home: Path, options: argparse.Namespace) -> None:
    runs = [f"20260101-00000{i}-long-{i:04d}" for i in range(options.runs)]
    if not (home / "megaboard.db").exists():
        print(
            f"long: stored {options.runs} runs of {options.points:,} steps in {_fill(home, runs, options.points):.0f} s"
        )
    server = Served(home)
    server.start()
    try:
        asyncio.run(_ask_long(server, runs, options))
    finally:
        server.kill()


async def _ask_long(server: Served, runs: list[str], options: argparse.Namespace) -> None:
    async with _client(server) as client:
        poll = await _enter(client)
        # An empty list warms up the server, so that the cost of a first request does not count.
        await Tab(client, poll, "").tick()
        before = server.peak_mib()
        for number, run in enumerate(runs[:2]):
            cpu = server.cpu_s()
            tab = Tab(client, poll, run)
            first_s = await tab.tick()
            name = "first view" if number == 0 else "first view of another run"
            print(f"long: {name} {first_s:.2f} s, {server.cpu_s() - cpu:.2f} s of CPU, {tab.last:,} bytes,", end=" ")
            print(f"peak memory {server.peak_mib():.0f} MiB ({before:.0f} before)", flush=True)
        cpu = server.cpu_s()
        further = [await Tab(client, poll, runs[0]).tick() for _ in range(10)]
        print(
            f"long: a further tab {1000 * _median(further):.0f} ms, {100 * (server.cpu_s() - cpu):.0f} ms of CPU",
            flush=True,
        )
        tabs = [Tab(client, poll, runs[number % len(runs)]) for number in range(options.tabs)]
        cpu = server.cpu_s()
        firsts, ticks = await _watch(tabs, options.ticks)
        _report("long", f"{options.tabs} tabs on {len(runs)} runs", firsts, ticks)
        print(
            f"long: {server.cpu_s() - cpu:.1f} s of CPU for these, peak memory {server.peak_mib():.0f} MiB", flush=True
        )


def _live(home: Path, options: argparse.Namespace) -> None:
    store = Store(home / "megaboard.db")
    run = StoredRun(store, LIVE, now=time.time() - 3600, nodes=options.nodes, gpus_per_node=8, name="live")
    run.start()
    _add_usage(store, options.nodes)
    store.close()
    server = Served(home, LIVE)
    server.start()
    try:
        asyncio.run(_ask_live(server, options))
    finally:
        server.kill()


async def _ask_live(server: Served, options: argparse.Namespace) -> None:
    async with _client(server) as client:
        poll = await _enter(client)
        await Tab(client, poll, "").tick()
        cpu, start = server.cpu_s(), time.perf_counter()
        await asyncio.sleep(5 * TICK_S)
        idle = (server.cpu_s() - cpu) / (time.perf_counter() - start)
        print(f"live: {options.nodes} x 8 without tabs: {100 * idle:.0f}% of a core", flush=True)
        tabs = [Tab(client, poll, LIVE) for _ in range(options.tabs)]
        cpu, start = server.cpu_s(), time.perf_counter()
        firsts, ticks = await _watch(tabs, options.ticks)
        busy = (server.cpu_s() - cpu) / (time.perf_counter() - start)
        _report("live", f"{options.nodes} x 8, {options.tabs} tabs", firsts, ticks)
        print(f"live: {100 * busy:.0f}% of a core with them, peak memory {server.peak_mib():.0f} MiB", flush=True)


async def _watch(tabs: list[Tab], ticks: int) -> tuple[list[float], list[float]]:
    """Return the seconds of the first views, which open over the length of one tick, and of the ticks after them."""
    firsts: list[float] = []
    later: list[float] = []

    async def watch_tab(number: int, tab: Tab) -> None:
        await asyncio.sleep(TICK_S * number / len(tabs))
        firsts.append(await tab.tick())
        for _ in range(ticks):
            await asyncio.sleep(TICK_S)
            later.append(await tab.tick())

    await asyncio.gather(*(watch_tab(number, tab) for number, tab in enumerate(tabs)))
    return firsts, later


def _report(part: str, tabs: str, firsts: list[float], ticks: list[float]) -> None:
    print(
        f"{part}: {tabs}: first views p50 {_median(firsts):.2f} s, p95 {_p95(firsts):.2f} s, worst {max(firsts):.2f} s;"
    )
    print(f"{part}: their ticks p50 {1000 * _median(ticks):.0f} ms, p95 {1000 * _p95(ticks):.0f} ms", end="")
    lost = sum(seconds >= TIMEOUT_S for seconds in firsts + ticks)
    print(f"; {lost} without an answer within {TIMEOUT_S:.0f} s", flush=True)


def _client(server: Served) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=200)
    # Only browsers resolve the server's own name.
    headers = {"origin": server.url, "host": server.url.removeprefix("http://")}
    address = f"http://127.0.0.1:{server.port}"
    return httpx.AsyncClient(base_url=address, headers=headers, timeout=TIMEOUT_S, limits=limits)


async def _enter(client: httpx.AsyncClient) -> dict[str, Any]:
    """Log in. Return what marks a poll request of the monitor."""
    await client.post("/login", data={"password": PASSWORD})
    config = (await client.get("/en/config")).json()
    poll = next(item for item in config["dependencies"] if any(event == "poll" for _, event in item["targets"]))
    return {"fn_index": poll["id"], "trigger_id": poll["targets"][0][0], "session_hash": "load"}


def _fill(home: Path, runs: list[str], points: int) -> float:
    """Store the first run step by step, and copy its rows for the others."""
    start = time.perf_counter()
    store = Store(home / "megaboard.db")
    for number, run in enumerate(runs):
        stored = StoredRun(store, run, now=1_700_000_000.0 + number, name="long", nodes=4, gpus_per_node=8)
        stored.start()
        stored.log(0, "rank0.log", b"{'loss': 1.234, 'grad_norm': 0.9}\n" * 2000)
        stored.beat()
        if number == 0:
            rows = _rows(points)
            while batch := [row for _, row in zip(range(BATCH), rows, strict=False)]:
                _add(store, run, batch)
        else:
            _copy(store, runs[0], run)
        for rank in range(4):
            stored.exit(rank)
        stored.add_event(EventKind.FINISHED)
    store.close()
    return time.perf_counter() - start


def _copy(store: Store, source: str, target: str) -> None:
    """Copy all that the store keeps of a run's points. Cursors of points (`seq`) move with the points."""
    with store.read() as connection:
        tables = [row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: [row["name"] for row in connection.execute(f"PRAGMA table_info({name})")] for name in tables}
    newest = "(SELECT max(seq) FROM points WHERE run = ?)"
    for name in ["points", *sorted(name for name in tables if name.startswith("curve"))]:
        copied = [column for column in columns[name] if column != "run" and (name != "points" or column != "seq")]
        values_of = [f"seq + {newest} - {newest}" if column == "seq" else column for column in copied]
        values = [target, source] if "seq" in copied else []
        text = (
            f"INSERT INTO {name} (run, {', '.join(copied)}) SELECT ?, {', '.join(values_of)} FROM {name} WHERE run = ?"  # noqa: S608
        )
        store.write(lambda c, text=text, values=values: c.execute(text, [target, *values, source]))


def _rows(count: int) -> Iterator[dict[str, Any]]:
    """Return steps with all figures that an engine logs: one spike, and two steps whose loss is not finite."""
    for step in range(1, count + 1):
        wobble = math.sin(step * 12.9898) * 43758.5453 % 1.0
        loss = 1.2 + 2.4 * math.exp(-step / (count / 10)) + 0.2 * wobble
        if step == count // 3:
            loss = 9.0
        yield {
            "step": step,
            "total_steps": count,
            "time": 1_700_000_000.0 + step,
            "step_s": 0.9 + 0.1 * wobble,
            "loss": math.nan if step in (count // 2, count // 2 + 1) else loss,
            "grad_norm": 0.8 + 0.3 * wobble,
            "learning_rate": 2e-5 * (1 - step / (count + 1)),
            "epoch": step / count,
            "allocated_gib": 60.0,
            "reserved_gib": 66.0,
        }


def _add(store: Store, run: str, rows: list[dict[str, Any]]) -> None:
    store.write(lambda connection: metrics.add_points(connection, run, 1, 0, rows))


def _add_usage(store: Store, nodes: int) -> None:
    """Store a day of utilization: as many intervals per node as the store keeps."""
    from backend.runs.store import utilization
    from tools.stored_runs import heartbeat

    width = 256
    start = int(time.time()) // width * width - utilization.ROWS * width

    def write(connection: Any) -> None:
        for rank in range(nodes):
            measures = utilization._measures(heartbeat(rank, 8, float(rank)))
            data = json.dumps(
                {name: [measure.low, measure.high, measure.devices] for name, measure in measures.items()}
            )
            rows = [(LIVE, rank, start + width * i, width, 128, data) for i in range(utilization.ROWS)]
            connection.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?)", rows)

    store.write(write)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


if __name__ == "__main__":
    main()
