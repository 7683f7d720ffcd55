"""Calls of the node's tools. Standard library only, Python >= 3.8."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

MARK = "MEGABOARD_RUN"
"""Environment variable of every process of a run. Its value names the run and the node rank."""


class Output(NamedTuple):
    """Exit status and output of a tool."""

    code: int | None
    """None for a tool that did not start or did not end in time."""
    out: str
    err: str


def run_tool(command: list[str], timeout_s: float) -> Output:
    """Run a tool without input, in English, and return its output."""
    # The tool has another mark, because it is no member of the run.
    environment = {**os.environ, MARK: command[0], "LC_ALL": "C"}
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return Output(None, "", f"no answer within {timeout_s:g} s")
    except (OSError, subprocess.SubprocessError) as error:
        return Output(None, "", str(error))
    return Output(result.returncode, result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace"))
