"""Settings that all tests share."""

import gc
import inspect
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from app.web.gradio_settings import file_of_all_but_components
from backend.runs.store.store import Store
from tests.fault_table import ROWS, Row, table

# A busy machine must not make a test fail.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Gradio reads this when it is imported. No test may connect to the network.
os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_OFFLINE="1")

# Any test may be the first to import Gradio.
inspect.getfile = file_of_all_but_components


# Its assertions explain themselves as those of a test module do.
pytest.register_assert_rewrite("tests.e2e.engine_checks")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep modules and tests, which stay to the end, out of garbage collection: a look at them takes seconds."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


LONGEST = ("e2e", "slurm", "ui")
"""Folders whose files take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, so that no worker is left with one while the others have nothing to do."""
    folders = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(folders).parts[0] not in LONGEST)


@pytest.fixture(autouse=True, scope="session")
def _words_must_exist():
    """Make a missing catalogue key an error in tests. Users would see the key instead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGABOARD_STRICT_WORDS", "1")
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Return a new store, which is closed at the end."""
    store = Store(tmp_path / "megaboard.db")
    yield store
    store.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the rows of an xdist worker to the session that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["faults"] = [asdict(row) for row in ROWS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    ROWS.extend(Row(**row) for row in getattr(node, "workeroutput", {}).get("faults", ()))
    ROWS.sort(key=lambda row: (row.fault, row.trainer))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not ROWS:
        return
    terminalreporter.section("faults: seconds, culprit, processes left, points lost and doubled")
    for line in table(ROWS):
        terminalreporter.write_line(line)
    terminalreporter.write_line(json.dumps([asdict(row) for row in ROWS]))
