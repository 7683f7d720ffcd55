"""The Hugging Face path's peak is what torch's own tracker counts on real steps of small models.

Cheaper tests (test_hugging_face.py) hold figures that were counted so once, and cannot see that an upgrade of torch or
transformers keeps other tensors.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.e2e, needs_node_environment]


def test_the_peak_of_every_small_model_is_within_five_percent_of_torchs_tracker() -> None:
    command = [NODE_PYTHON, "-W", "ignore", "-m", "benchmarks.step_peak", "--json"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, cwd=ROOT, env=one_thread, capture_output=True, text=True, timeout=300, check=True)
    peaks = json.loads(found.stdout.splitlines()[-1])
    assert len(peaks) == 12
    off = {case: ours / torchs - 1 for case, (torchs, ours) in peaks.items()}
    assert {case: error for case, error in off.items() if abs(error) > 0.05} == {}
