"""The rules on LLaMA-Factory's packing, backend/job/rules/packing.py, against its collator and transformers' models."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.demo import tiny_model
from backend.job.rules.packing import MASKS_OF_TOKENS
from benchmarks.small_models import SMALL_MODELS
from tests.engines.test_families import arguments
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(900), needs_node_environment]

LEAKING = ("bamba", "falcon_h1", "granitemoehybrid", "lfm2", "qwen3_next")
WITHIN = ("gemma2", "llama", "mixtral", "qwen3")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def answer_of(program: str, cases: Mapping[str, Any]) -> dict[str, Any]:
    command = [NODE_PYTHON, "-W", "ignore", Path(__file__).with_name(program)]
    result = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, env=ENVIRONMENT,
                            check=False)  # fmt: skip
    sys.stderr.write(result.stderr[-4000:])
    assert result.returncode == 0
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return answer_of("packed_samples.py", {name: SMALL_MODELS[name] for name in (*MASKS_OF_TOKENS, *LEAKING, *WITHIN)})


@pytest.mark.parametrize("name", MASKS_OF_TOKENS)
def test_a_model_that_takes_a_mask_of_tokens_alone_ends_with_an_error(found: Mapping[str, Any], name: str) -> None:
    assert "Error" in found[name]["later"]


@pytest.mark.parametrize("name", WITHIN)
def test_attention_sees_no_other_sample_of_the_pack(found: Mapping[str, Any], name: str) -> None:
    assert found[name]["later"] == 0


@pytest.mark.parametrize("name", LEAKING)
def test_states_and_convolutions_run_on_into_the_next_sample(found: Mapping[str, Any], name: str) -> None:
    assert found[name]["later"] > 0


@pytest.mark.parametrize("name", WITHIN)
def test_positions_that_are_too_few_end_with_an_error(found: Mapping[str, Any], name: str) -> None:
    assert "size of tensor" in found[name]["short"]


def test_the_balance_loss_takes_no_mask_of_pairs(found: Mapping[str, Any]) -> None:
    assert "too many values to unpack" in found["mixtral"]["balance"]


def test_llamafactory_packs_to_a_multiple_of_eight_alone(tmp_path: Path) -> None:
    subprocess.run([NODE_PYTHON, tiny_model.__file__, tmp_path], check=True, capture_output=True)
    given = arguments(tmp_path, "qwen3", SMALL_MODELS["qwen3"])
    packs = {
        "plain 60": {"packing": True, "cutoff_len": 60},
        "neat 60": {"packing": True, "neat_packing": True, "cutoff_len": 60},
        "plain 64": {"packing": True, "cutoff_len": 64},
        "neat 64": {"packing": True, "neat_packing": True, "cutoff_len": 64, "per_device_train_batch_size": 2},
    }
    cases = {name: {"config": SMALL_MODELS["qwen3"],
                    "arguments": {**given, **keys, "output_dir": str(tmp_path / name)}}
             for name, keys in packs.items()}  # fmt: skip
    losses = answer_of("family_steps.py", cases)
    assert all("size of tensor" in losses[name] for name in ("plain 60", "neat 60"))
    assert all(isinstance(losses[name], float) for name in ("plain 64", "neat 64"))
