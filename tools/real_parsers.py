"""The engines' own parsers over many configurations at once. Each call starts one process of the engine's Python."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.programs import NODE_PYTHON

HERE = Path(__file__).parent
_ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

Configurations = Mapping[str, Mapping[str, Any]]
"""Case -> {files, environment}, and `ranks` where the rest of the start should be checked too."""


def parse_with_llamafactory(cases: Configurations, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return case -> {error, warnings, arguments, ...} (parse_with_llamafactory.py)."""
    return _run([str(NODE_PYTHON), "-W", "ignore", str(HERE / "parse_with_llamafactory.py")], cases, environment)


def parse_with_swift(python: str, cases: Configurations) -> dict[str, Any]:
    """Return case -> {error, arguments} (parse_with_swift.py). `python` is an interpreter that has ms-swift."""
    return _run([python, "-W", "ignore", str(HERE / "parse_with_swift.py")], cases, {})


def _run(command: list[str], cases: Configurations, environment: Mapping[str, str]) -> dict[str, Any]:
    # A file, because an engine may leave a pipe in a mode in which only a part of a long line is written.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.run(
            command,
            input=json.dumps(cases),
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **_ONE_RANK, **environment},
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=900,
            check=False,
        )
        output.seek(0)
        lines = output.read().splitlines()
    if process.returncode != 0 or not lines:
        raise RuntimeError(process.stderr[-3000:])
    results: dict[str, Any] = json.loads(lines[-1])
    return results
