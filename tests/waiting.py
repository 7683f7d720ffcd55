"""Functions that wait for an event. Their deadlines are long, so that a busy machine causes no failure."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

WITHIN_S = 120.0


def wait_for(holds: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Return when the condition holds. Raise AssertionError after the deadline."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"did not happen within {within_s:.0f} s"
        time.sleep(0.02)


def while_it_runs(flag: Path, act: Callable[[], object]) -> list[str]:
    """Return a command that takes a minute. `act` runs after the command has made a file, and so is under way."""

    def once_under_way() -> None:
        wait_for(flag.exists)
        act()

    threading.Thread(target=once_under_way, daemon=True).start()
    return ["sh", "-c", 'touch "$1" && exec sleep 60', "sh", str(flag)]


def whole_lines(path: Path) -> list[str]:
    """Return the complete lines of a file that another process may be writing; none if there is no file."""
    return path.read_text().split("\n")[:-1] if path.exists() else []
