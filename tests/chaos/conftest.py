"""Labs for the faults."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.lab import Lab, why_not
from tests.chaos.scene import NODES


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
