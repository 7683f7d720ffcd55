"""The wheel, installed by `uv tool` in an empty home, builds the environment of its nodes and passes the journey."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.e2e import test_journey
from tests.ui.browser import needs_chromium
from tools.browser import CHECKOUT

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(4000), needs_chromium]

OWN_FOLDERS = ("XDG_", "UV_TOOL_")
"""Beginnings of the variables that would name folders outside the empty home."""


@pytest.fixture
def empty_home(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty home. Afterwards delete it, because the environment of the nodes is large."""
    home = tmp_path / "empty"
    home.mkdir()
    yield home
    shutil.rmtree(home)


def test_a_wheel_in_an_empty_home_builds_the_nodes_and_passes_the_journey(empty_home: Path, tmp_path: Path) -> None:
    program = empty_home / ".local" / "bin" / "megaboard"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OWN_FOLDERS)}
    environment |= {"HOME": str(empty_home), "MEGABOARD_PROGRAM": str(program)}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True)
    [wheel] = tmp_path.glob("*.whl")
    install = [find_uv_bin(), "tool", "install", "--python", sys.executable, str(wheel)]
    subprocess.run(install, cwd=tmp_path, env=environment, check=True)
    journey = [sys.executable, "-m", "pytest", "-q", "-rs", test_journey.__file__]
    done = subprocess.run(journey, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
    assert [path.name for path in empty_home.glob(".cache/megaboard/node-*/.ready")] == [".ready"]
