"""Types that the node's transformers does not have, built by the transformers of requirements/newer.in."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.nodes import needs_node_environment
from tools.programs import NEWER_PYTHON
from tools.write_models import read_newer_types

needs_newer = pytest.mark.skipif(not NEWER_PYTHON.exists(), reason="no later transformers: run `make engines`")
pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment, needs_newer]


def test_newer_types_have_as_many_parameters_as_transformers_builds() -> None:
    command = [NEWER_PYTHON, "-W", "ignore", "-m", "benchmarks.families", "--newer"]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    measured = json.loads(result.stdout.splitlines()[-1])
    assert {name: each["theirs"] for name, each in measured["types"].items() if each["status"] == "wrong"} == {}
    kept = read_newer_types()
    assert measured["transformers"] == kept["transformers"]
    assert measured["types"] == kept["types"]
