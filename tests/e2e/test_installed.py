"""The wheel, installed by `uv tool` in an empty home, builds the environment of its nodes and passes the journey."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.ui.browser import needs_chromium
from tools.browser import CHECKOUT

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(4000), needs_chromium]


def test_the_journey_passes_with_a_wheel_in_an_empty_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "UV_"))}
    environment |= {"HOME": str(home), "MEGABOARD_PROGRAM": str(home / ".local" / "bin" / "megaboard")}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True, timeout=300)
    [wheel] = tmp_path.glob("*.whl")
    install = [find_uv_bin(), "tool", "install", "--python", sys.executable, str(wheel)]
    subprocess.run(install, env=environment, check=True, timeout=600)
    journey = [sys.executable, "-m", "pytest", "-q", "-rs", str(CHECKOUT / "tests" / "e2e" / "test_journey.py")]
    done = subprocess.run(journey, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
