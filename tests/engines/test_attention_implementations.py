"""What transformers does with bounded scores and with sinks: the rules of backend/job/rules/attention.py."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment]


@cache
def found() -> dict[str, Any]:
    command = [NODE_PYTHON, "-W", "ignore", Path(__file__).with_name("attention_implementations.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def test_transformers_takes_eager_attention_for_sinks_alone() -> None:
    assert found()["default"] == {"gemma2": "sdpa", "gpt_oss": "eager", "llama": "sdpa"}


def test_the_default_attention_leaves_the_bound_of_scores_out() -> None:
    assert found()["softcap"]["sdpa"] == 0
    assert found()["softcap"]["eager"] > 0.01
