"""LLaMA-Factory's reentrant checkpoints lose gradients of shared keys and values; the rule shared_keys_reentrant."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.small_models import SMALL_MODELS
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment]
SHARED = {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2}


def errors(keys: dict[str, Any]) -> dict[str, float]:
    program = Path(__file__).with_name("shared_keys.py")
    command = [NODE_PYTHON, "-W", "ignore", program, json.dumps(keys)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("name", ["gemma3n_text", "gemma4_text"])
def test_only_checkpoints_that_are_not_reentrant_keep_the_gradients_of_shared_keys(name: str) -> None:
    found = errors({**SMALL_MODELS[name], **SHARED})
    assert found["reentrant"] > 0.1
    assert found["not reentrant"] < 1e-4


def test_reentrant_checkpoints_are_right_where_every_layer_has_its_own_keys() -> None:
    assert max(errors(dict(SMALL_MODELS["gemma3_text"])).values()) < 1e-4
