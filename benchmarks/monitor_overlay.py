"""Eight long runs side by side in Chromium: seconds to the first paint and to a zoom, and memory of the server.

    python -m benchmarks.monitor_overlay [--runs 8] [--points 100000]

The page is the real one with its log-in (tools/monitor_server.py). The first paint ends when every chart that is on
screen has drawn a curve of every run; it begins with the address of the view, in a page that is already open. The zoom
ends when the first chart has drawn the points of the shown range. CPU seconds are those of the
browser's process of the page; they hardly depend on what else the machine does. The browser runs on the same machine.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.monitor_load import Served, _fill
from tools.browser import chromium, logged_in

CURVES = """(count) => {
    const plots = [...document.querySelectorAll('.mbm-side .mbm-plot')];
    const isSeen = (plot) => plot.getBoundingClientRect().top < innerHeight;
    const drawn = (plot) => plot.querySelectorAll('.scatterlayer .trace .lines path').length;
    const seen = plots.filter(isSeen);
    return seen.length > 0 && seen.every((plot) => drawn(plot) >= count);
}"""
ZOOM = """(range) => {
    window.Plotly.relayout(document.querySelector('.mbm-side .mbm-plot'), {'xaxis.range': range});
}"""
DETAIL = """([first, last]) => {
    const plot = document.querySelector('.mbm-side .mbm-plot');
    const inside = plot.data.filter((trace) => trace.x.filter((x) => x >= first && x <= last).length > 100);
    return plot.layout.xaxis.range[0] === first && inside.length >= plot.data.length && plot.data.length > 0;
}"""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--points", type=int, default=100_000)
    options = parser.parse_args()
    runs = [f"20260101-000000-run{number}-aaaa" for number in range(options.runs)]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        _fill(home, runs, options.points)
        server = Served(home)
        server.start()
        try:
            before = server.peak_mib()
            with chromium() as browser, logged_in(server, browser) as page:
                page.goto(f"{server.url}/en/#runs")
                page.wait_for_selector(f'[data-key="{runs[0]}"]')
                _measure(page, runs, options.points)
            print(f"memory of the server: {before:.0f} MiB before the view, peak {server.peak_mib():.0f} MiB")
            print(f"CPU of the server: {server.cpu_s():.1f} s in all")
        finally:
            server.end()


def _measure(page: Any, runs: list[str], points: int) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def cpu_s() -> float:
        values = session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in values if one["name"] == "ProcessTime")

    start, cpu = time.perf_counter(), cpu_s()
    page.evaluate("(hash) => { location.hash = hash; }", f"#runs/compare/{','.join(runs)}")
    page.wait_for_function(CURVES, arg=len(runs), polling="raf")
    spent = f"{time.perf_counter() - start:.2f} s, {cpu_s() - cpu:.2f} CPU s"
    print(f"first paint, {len(runs)} runs of {points:,} points: {spent}")
    for name, span in (
        ("first", [points // 4, points // 4 + points // 50]),
        ("second", [points // 2, points // 2 + points // 100]),
    ):
        start, cpu = time.perf_counter(), cpu_s()
        page.evaluate(ZOOM, span)
        page.wait_for_function(DETAIL, arg=span, polling="raf")
        spent = f"{time.perf_counter() - start:.2f} s, {cpu_s() - cpu:.2f} CPU s"
        print(f"{name} zoom, to {span[1] - span[0]:,} steps: {spent}")


if __name__ == "__main__":
    main()
