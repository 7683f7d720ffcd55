"""What a benchmark prints when it runs in the environment of a node, beside the real modules."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tools.programs import NODE_PYTHON

ROOT = Path(__file__).parents[2]


def printed_by(module: str, *arguments: str, case: str = "", python: Path = NODE_PYTHON) -> Any:
    """Run a module on one thread, with `case` as its input, and return the JSON of its last line."""
    done = subprocess.run(
        [str(python), "-W", "ignore", "-m", module, *arguments],
        input=case,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
