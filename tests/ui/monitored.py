"""The monitor's page over runs that a test writes into the store. conftest.py has its fixtures."""

import sys
import time
from pathlib import Path

from backend.runs.store import metrics
from backend.runs.store.store import Store
from tools.browser import PASSWORD, Server
from tools.stored_runs import StoredRun

TICK_S = 0.3


class Monitored(Server):
    """The monitor's page, and the store that it reads."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.store = Store(home / "megaboard.db")

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tools.monitor_server", str(self.port), str(self.home), str(TICK_S), PASSWORD]

    def run(self, run: str, **options) -> StoredRun:
        return StoredRun(self.store, run, **{"now": time.time() - 600, **options})


def open_run(page, server: Monitored, run: str, lang: str = "en") -> None:
    page.goto(f"{server.url}/{lang}/#runs/{run}")
    page.wait_for_selector(f'[data-run="{run}"] h2:not(:empty)')


def shown_loss(page) -> dict:
    return page.evaluate("() => Megaboard.monitor.view().charts.data('loss')")


def wait_for_points(page, count: int) -> None:
    page.wait_for_function(f"() => Megaboard.monitor.view().charts.data('loss').x.length === {count}")


def stored_steps(server: Monitored, run: str) -> list[int]:
    with server.store.read() as connection:
        return [point.step for point in metrics.points(connection, run)]
