"""Indexers get no gradient, and GLM-5 sees later tokens: the rules of backend/job/rules/sparse.py."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backend.job.rules.sparse import BLOCK_INDEXER_MODULES, HEAD_INDEXER_MODULES, INDEXER_MODULES
from tests.nodes import needs_node_environment
from tools.programs import NEWER_PYTHON, NODE_PYTHON

ROOT = Path(__file__).parents[2]
needs_newer = pytest.mark.skipif(not NEWER_PYTHON.exists(), reason="no later transformers: run `make engines`")
pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment, needs_newer]


def found(python: Path, name: str) -> dict[str, Any]:
    command = [python, "-W", "ignore", Path(__file__).with_name("sparse_attention.py"), name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize(
    ("python", "name"),
    [
        (NODE_PYTHON, "glm_moe_dsa"),
        *((NEWER_PYTHON, name) for name in ("axk2", "deepseek_v32", "minimax_m3_vl_text", "qwen4_exp_text")),
    ],
)
def test_an_indexer_gets_no_gradient_and_all_other_weights_do(python: Path, name: str) -> None:
    idle = found(python, name)["without_gradient"]
    assert all(".indexer." in key for key in idle)
    of_blocks = {"minimax_m3_vl_text": HEAD_INDEXER_MODULES, "qwen4_exp_text": BLOCK_INDEXER_MODULES}
    modules = of_blocks.get(name, INDEXER_MODULES)
    assert {*modules} <= {key.split(".")[-2] for key in idle}


def test_glm_sees_later_tokens_with_the_fused_attention_of_the_nodes_transformers() -> None:
    changes = found(NODE_PYTHON, "glm_moe_dsa")["changes"]
    assert changes["sdpa"] > 0.01
    assert changes["eager"] < 1e-4


@pytest.mark.parametrize("name", ["axk2", "glm_moe_dsa", "deepseek_v32", "minimax_m3_vl_text", "qwen4_exp_text"])
def test_a_later_transformers_is_causal(name: str) -> None:
    assert max(found(NEWER_PYTHON, name)["changes"].values()) < 1e-4
