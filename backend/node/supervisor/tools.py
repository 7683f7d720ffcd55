"""What the node's own tools say."""

from __future__ import annotations

import os
import subprocess

from .processes import MARK


def said(command: list[str], timeout_s: float) -> tuple[int | None, str, str]:
    """Status, output and errors of a tool; None and nothing where it is not there or does not answer in time."""
    # A mark of its own: it is no member of the run.
    environment = {**os.environ, MARK: command[0], "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, "", str(error)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
