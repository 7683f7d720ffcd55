"""Time from an edit on the Plan step until the page is painted: real page, estimator and Chromium.

    python -m benchmarks.page_edit [--edits 40] [--gpus 32] [--model PRESET] [--json]

The page measures from a synthetic input event to the task after the next frame. To compare machines, each edit
alternates with an empty event of the same page: a number that the server returns unchanged. The table also shows the
CPU time of server and browser, which a busy machine changes least. The browser's includes 60 ms of waiting after each
event.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.launch import tree
from tools.browser import PASSWORD, Server, logged_in

TARGET_MEDIAN_MS, TARGET_P95_MS = 150, 250

# Sets a number box as a user would, and waits until its effect is painted.
MEASURE = """
([selector, value, event]) => new Promise((done) => {
  const box = document.querySelector(selector);
  const painted = () => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done(performance.now() - begun);
    channel.port2.postMessage(0);
  });
  document.addEventListener(event, painted, { once: true });
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(box, value);
  const begun = performance.now();
  box.dispatchEvent(new Event("input", { bubbles: true }));
})
"""


class Edited(Server):
    """Run the page of `serve` in its own process."""

    def __init__(self, home: Path, gpus: int, model: str | None) -> None:
        super().__init__(home)
        self.chosen = ["--gpus", str(gpus), *(["--model", model] if model else [])]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.page_edit", *self.chosen, "--serve", str(self.port), str(self.home)]


def main() -> None:
    """Print the time of edits and of empty events."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--gpus", type=int, default=32, help="GPUs of the cluster, eight a node")
    parser.add_argument("--model", help="a preset; the draft's own model without it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "HOME"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(int(chosen.serve[0]), Path(chosen.serve[1]), chosen.gpus, chosen.model)
        return
    with tempfile.TemporaryDirectory() as home:
        server = Edited(Path(home), chosen.gpus, chosen.model)
        server.start()
        try:
            with logged_in(server) as page:
                result = {"gpus": chosen.gpus, **measure(page, server, chosen.edits)}
        finally:
            server.end()
    print(json.dumps(result, indent=1) if chosen.json else as_text(result))


def serve(port: int, home: Path, gpus: int, model: str | None) -> None:
    """Return the page with one more widget, whose event does nothing."""
    from app.web.binding import Binding
    from app.web.gradio_settings import prepare_gradio

    prepare_gradio(home)
    import gradio as gr

    from app.services import Services
    from app.web.passwords import PasswordHash
    from app.web.server import create_app
    from app.web.server import serve as serve_app
    from app.web.shell import build

    services = Services.open(home)
    services.draft.edit_all(
        {"cluster.nodes": gpus // 8, "parallel.tensor": 4, **({"model.preset": model} if model else {})}
    )
    page = build("en", services)
    with page:
        box = gr.Number(elem_id="empty")
        effect = gr.HTML(
            "", js_on_load="watch('value', () => document.dispatchEvent(new Event('empty:drawn')))", elem_id="told"
        )
        box.input(str, box, effect, queue=False, trigger_mode="always_last", show_progress="hidden")
    binding = Binding(port=port)
    password = PasswordHash.of(PASSWORD)
    app = create_app({"en": page}, home=home, password=password, audit=services.audit, binding=binding)
    serve_app(app, binding, binding.listen())


def measure(page: Any, server: Server, edits: int) -> dict[str, Any]:
    """Return the milliseconds of `edits` edits of the micro-batch, and of as many empty events."""
    page.goto(f"{server.url}/en/#plan")
    page.reload()
    page.wait_for_selector(".mb-plans tr[data-index]")
    row_edits = {
        "edit": ("#field-training-micro_batch_size input", "megaboard:drawn"),
        "empty": ("#empty input", "empty:drawn"),
    }
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in row_edits}
    server_pid = server.process.pid
    browsers = set(tree(os.getpid())) - {os.getpid()} - set(tree(server_pid))
    for number in range(edits + 3):
        for name, (selector, event) in row_edits.items():
            before = _cpu_ms({server_pid}), _cpu_ms(browsers)
            painted = page.evaluate(MEASURE, [selector, str(2 - number % 2), event])
            page.wait_for_timeout(60)
            after = _cpu_ms({server_pid}), _cpu_ms(browsers)
            times[name].append((painted, after[0] - before[0], after[1] - before[1]))
    # The first three edits warm the page up.
    edit, empty = ([*zip(*times[name][3:], strict=True)] for name in row_edits)
    return {
        "plans": int(page.get_attribute(".mb-plans", "aria-rowcount") or 1) - 1,
        "edit_ms": _figures(edit),
        "empty_ms": _figures(empty),
        "ratio": round(statistics.median(edit[0]) / statistics.median(empty[0]), 2),
        "load": round(os.getloadavg()[0], 1),
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the table as text."""
    lines = [f"{result['plans']} plans, {result['gpus']} GPUs, load average {result['load']}"]
    lines.append(f"{'':14}{'median':>8}{'p95':>8}{'max':>8}  ms, CPU ms: {'server':>8}{'browser':>8}")
    for name in ("edit_ms", "empty_ms"):
        figures = result[name]
        lines.append(f"{name:14}{figures['median']:8.0f}{figures['p95']:8.0f}{figures['max']:8.0f}"
                     f"{'':14}{figures['server_cpu']:8.0f}{figures['browser_cpu']:8.0f}")  # fmt: skip
    lines.append(f"target         {TARGET_MEDIAN_MS:7}{TARGET_P95_MS:8}")
    lines.append(f"an edit costs {result['ratio']} empty events")
    return "\n".join(lines)


def _figures(times: Sequence[Sequence[float]]) -> dict[str, float]:
    painted, server, browser = times
    ordered = sorted(painted)
    return {
        "median": round(statistics.median(ordered), 1),
        "p95": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 1),
        "max": round(ordered[-1], 1),
        "server_cpu": round(statistics.median(server), 1),
        "browser_cpu": round(statistics.median(browser), 1),
    }


def _cpu_ms(pids: Iterable[int]) -> float:
    """Return the CPU time of the existing threads."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(task.read_text().split()[0])
    return total / 1e6


if __name__ == "__main__":
    main()
