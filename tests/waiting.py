"""Waiting for what must happen, by a deadline far beyond what it takes: a busy machine is no failure."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

WITHIN_S = 120.0


def wait_for(holds: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Returns once it holds; an AssertionError where it does not in time."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"did not happen within {within_s:.0f} s"
        time.sleep(0.02)


def while_it_runs(flag: Path, act: Callable[[], object]) -> list[str]:
    """A command that lasts a minute; what `act` does happens once it makes the file, and so is under way."""

    def once_under_way() -> None:
        wait_for(flag.exists)
        act()

    threading.Thread(target=once_under_way, daemon=True).start()
    return ["sh", "-c", 'touch "$1" && exec sleep 60', "sh", str(flag)]


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that somebody may be writing, without one that is not ended; none where there is no file."""
    return path.read_text().split("\n")[:-1] if path.exists() else []
