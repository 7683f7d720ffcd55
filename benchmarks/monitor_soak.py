"""Growth of an open monitor page over hundreds of ticks in a real browser: heap, nodes, listeners and bytes.

    python -m benchmarks.monitor_soak [--ticks 500] [--tick 0.2] [--nodes 4] [--gpus 8] [--steps 200]

Every tick brings one step, one heartbeat per node and one log line. A leak shows as a row that grows with the ticks.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page

from backend.node.supervisor.processes import read_stat
from backend.runs.store.store import Store
from tools.browser import PASSWORD, Server, logged_in
from tools.stored_runs import StoredRun

WARM_UP_TICKS = 30
RUN = "20260101-000000-soak-0000"
LOG_LINE = b"{'loss': 1.234, 'grad_norm': 0.9, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Monitored(Server):
    """Run the monitor page with another tick."""

    def __init__(self, home: Path, tick_s: float) -> None:
        super().__init__(home)
        self.tick_s = tick_s

    def command(self) -> list[str]:
        arguments = [str(self.port), str(self.home), str(self.tick_s), PASSWORD]
        return [sys.executable, "-m", "tools.monitor_server", *arguments]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=500)
    parser.add_argument("--tick", type=float, default=0.2, help="seconds between two ticks; the page's own is 2")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200, help="steps and log lines that are there at the start")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        store = Store(home / "megaboard.db")
        run = StoredRun(store, RUN, now=time.time(), name="soak", nodes=options.nodes, gpus_per_node=options.gpus)
        run.start()
        run.steps(1, options.steps, step_s=0.01)
        run.log(0, "rank0.log", LOG_LINE * options.steps)
        server = Monitored(home, options.tick)
        server.start()
        try:
            with logged_in(server) as page:
                rows = _soak(page, server, run, options)
        finally:
            server.kill()
            store.close()
    _print(rows, options)


def _soak(page: Page, server: Server, run: StoredRun, options: argparse.Namespace) -> list[dict[str, float]]:
    sizes: list[int] = []
    page.goto(f"{server.url}/en/#runs/{RUN}")
    page.wait_for_selector(f'[data-run="{RUN}"] h2:not(:empty)')
    page.on("requestfinished", lambda request: sizes.append(_size(request)) if "predict" in request.url else None)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    step = options.steps
    rows = []
    for target in (WARM_UP_TICKS, WARM_UP_TICKS + options.ticks // 2, WARM_UP_TICKS + options.ticks):
        while len(sizes) < target:
            step += 1
            _move(run, step)
            page.wait_for_timeout(1000 * options.tick)
        rows.append(_measure(page, session, server.process.pid, sizes))
    return rows


def _move(run: StoredRun, step: int) -> None:
    run.now = time.time()
    run.steps(step, step, step_s=0.001)
    run.beat()
    run.log(0, "rank0.log", LOG_LINE)


def _size(request: Any) -> int:
    sizes = request.sizes()
    return int(sizes["responseBodySize"] + sizes["responseHeadersSize"])


def _measure(page: Page, session: CDPSession, pid: int, sizes: list[int]) -> dict[str, float]:
    session.send("HeapProfiler.collectGarbage")
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return {
        "ticks": len(sizes),
        "heap MB": metrics["JSHeapUsedSize"] / 1e6,
        "DOM nodes": metrics["Nodes"],
        "listeners": metrics["JSEventListeners"],
        "script s": metrics["ScriptDuration"],
        "server CPU s": _cpu_s(pid),
        "bytes": sum(sizes),
        "points": page.evaluate("() => Megaboard.monitor.view().charts.data('loss').x.length"),
        "log lines": page.evaluate("() => document.querySelector('.mbm-log').childElementCount"),
    }


def _cpu_s(pid: int) -> float:
    fields = read_stat(pid)[1]
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _print(rows: list[dict[str, float]], options: argparse.Namespace) -> None:
    names = list(rows[0])
    print(f"{options.nodes} nodes x {options.gpus} GPUs, a tick every {options.tick} s, load {os.getloadavg()[0]:.1f}")
    print("| " + " | ".join(names) + " |")
    print("|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(f"{row[name]:,.2f}" if row[name] % 1 else f"{row[name]:,.0f}" for name in names) + " |")
    first, last = rows[0], rows[-1]
    ticks = last["ticks"] - first["ticks"]
    print(f"a tick: {(last['bytes'] - first['bytes']) / ticks:,.0f} bytes with headers,", end=" ")
    print(f"{1000 * (last['script s'] - first['script s']) / ticks:.1f} ms script,", end=" ")
    print(f"{1000 * (last['server CPU s'] - first['server CPU s']) / ticks:.1f} ms server CPU", end="; ")
    print(f"heap grew {1000 * (last['heap MB'] - first['heap MB']) / ticks:.1f} kB a tick")


if __name__ == "__main__":
    main()
