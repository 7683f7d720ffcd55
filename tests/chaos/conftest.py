"""Labs for the faults, and the table of results at the end of the session."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.lab import Lab, why_not
from tests.chaos.scene import NODES, ROWS, Row, table


@pytest.fixture(scope="session")
def missing() -> str:
    """Return what is missing for a lab on this machine; empty if it can run."""
    return why_not()


@pytest.fixture
def folder(tmp_path: Path, missing: str) -> Path:
    """Return a folder for one test that all nodes can read. Skip the test if no lab can run."""
    if missing:
        pytest.skip(missing)
    return tmp_path


@pytest.fixture
def lab(folder: Path) -> Iterator[Lab]:
    """Return a new lab for each fault, because most faults break it."""
    (folder / "lab").mkdir()
    with Lab(folder / "lab", NODES) as new_lab:
        yield new_lab


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
