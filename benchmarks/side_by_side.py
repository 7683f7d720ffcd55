"""Time until runs side by side are painted, and after a zoom: real page, store and Chromium.

    python -m benchmarks.side_by_side [--runs 8] [--points 100000] [--rounds 3] [--json]

The first round has a cold server. The page's own clock measures; the wait polls every 20 ms.
"""

import argparse
import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

from backend.runs.states import EventKind
from backend.runs.store import curve_levels, metrics
from backend.runs.store.store import Store
from benchmarks.launch import tree_mib
from tools.browser import logged_in, served
from tools.stored_runs import StoredRun

TARGET_MS = 1000
CHARTS = 5
BATCH = 5000

DRAWN = """
([charts, runs]) => {
  const plots = [...document.querySelectorAll(".mbm-side .mbm-plot")].slice(0, charts);
  return plots.length === charts && plots.every((plot) => plot.data?.filter(({ x }) => x.length > 100).length >= runs);
}
"""
# A zoom of the first chart must reach the second, with every step of its range.
ZOOMED = """
([from, to]) => {
  const [, second] = document.querySelectorAll(".mbm-side .mbm-plot");
  return second.data[1].x.filter((step) => step >= from && step <= to).length >= to - from;
}
"""


def main() -> None:
    """Print first paint and zoom of each round, and the server's memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        runs = write_runs(Path(home), chosen.runs, chosen.points)
        with served(Path(home)) as site, logged_in(site) as page:
            rounds = [measure(page, site.url, runs, chosen.points) for _ in range(chosen.rounds)]
            memory_mib = tree_mib(site.process.pid)
    if chosen.json:
        print(json.dumps({"rounds": rounds, "server_mib": memory_mib}))
        return
    print(f"{chosen.runs} runs of {chosen.points:,} points, {CHARTS} charts; target {TARGET_MS} ms")
    for number, times in enumerate(rounds, 1):
        print(f"round {number}: first paint {times['paint_ms']:.0f} ms, zoom {times['zoom_ms']:.0f} ms")
    print(f"server: {memory_mib:.0f} MiB")


def write_runs(home: Path, count: int, points: int) -> list[str]:
    """Write finished runs into a new store. Return their ids."""
    store = Store(home / "megaboard.db")
    runs = []
    for number in range(count):
        run = StoredRun(store, f"20260101-0001{number:02d}-run-aaaa", now=1_790_000_000 + number, nodes=1)
        run.start()
        chance = random.Random(number)  # noqa: S311 - curves, not secrets
        for first in range(1, points + 1, BATCH):
            steps = [step_line(step, points, number, chance) for step in range(first, min(first + BATCH, points + 1))]
            add_steps(store, run.id, steps)
        run.add_event(EventKind.FINISHED)
        runs.append(run.id)
    store.close()
    return runs


def add_steps(store: Store, run: str, steps: list[dict[str, Any]]) -> None:
    """Store steps, and the levels of their curves, as the collector does."""
    store.write(lambda connection: metrics.add_points(connection, run, 1, 0, steps))
    while store.write(lambda connection: curve_levels.add_points(connection, run)):
        pass


def step_line(step: int, total: int, number: int, chance: random.Random) -> dict[str, Any]:
    """Return a step as a node reports it."""
    return {
        "step": step,
        "total_steps": total,
        "time": 1_790_000_000 + step,
        "step_s": 0.9 + 0.1 * chance.random(),
        "loss": 1.2 + 0.05 * number + 2.4 * math.exp(-step / 20_000) + chance.gauss(0, 0.06),
        "grad_norm": 0.8 + chance.random(),
        "learning_rate": 1e-5 * (number + 1) * (1 - step / total),
    }


def measure(page: Any, url: str, runs: list[str], points: int) -> dict[str, float]:
    """Open the runs side by side from the list, then zoom into the first chart. Return milliseconds."""
    page.goto(f"{url}/en/#runs")
    page.wait_for_selector(".mbm-list tbody tr")
    page.evaluate(
        "(hash) => { window.began = performance.now(); location.hash = hash; }", f"#runs/compare/{','.join(runs)}"
    )
    page.wait_for_function(DRAWN, arg=[CHARTS, len(runs)], polling=20)
    paint_ms = page.evaluate("performance.now() - window.began")
    zoom = [int(0.4 * points), int(0.4 * points) + min(600, points // 10)]
    page.evaluate(
        """(range) => { window.began = performance.now();
            Plotly.relayout(document.querySelector(".mbm-side .mbm-plot"), { "xaxis.range": range }); }""",
        zoom,
    )
    page.wait_for_function(ZOOMED, arg=zoom, polling=20)
    return {"paint_ms": paint_ms, "zoom_ms": page.evaluate("performance.now() - window.began")}


if __name__ == "__main__":
    main()
