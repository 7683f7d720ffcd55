"""LLaMA-Factory trains one real step of a small model of each family, on CPU, from the files that Megaboard renders."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.demo import tiny_model
from app.demo.job import demo_job
from backend.engines import CONFIG, render
from backend.job.mapping import parse_job
from backend.job.problems import ProblemsError
from benchmarks.small_models import SMALL_MODELS
from tests.engines.jobs import place
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1800), needs_node_environment]

LOSS_OF_RANDOM_WEIGHTS = 6.2
"""ln(512): every token is as likely as the others."""


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    folder = tmp_path_factory.mktemp("families")
    subprocess.run([NODE_PYTHON, tiny_model.__file__, folder], check=True, capture_output=True)
    cases = {name: {"config": config, "arguments": arguments(folder, name, config)}
             for name, config in SMALL_MODELS.items() if name not in REFUSED_BY_A_RULE}  # fmt: skip
    program = Path(__file__).with_name("family_steps.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([NODE_PYTHON, "-W", "ignore", program], input=json.dumps(cases), capture_output=True,
                            text=True, env=environment, check=False)  # fmt: skip
    sys.stderr.write(result.stderr[-4000:])
    assert result.returncode == 0
    values: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return values


def arguments(folder: Path, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's configuration for one step of the model, whose folder gets the demo's tokenizer."""
    model = folder / name
    model.mkdir()
    for file in (folder / tiny_model.MODEL_FOLDER).glob("token*"):
        (model / file.name).write_bytes(file.read_bytes())
    host = {"address": "127.0.0.1"}
    environment = {"llamafactory": {"python": str(NODE_PYTHON)}}
    cluster = {"gpu": "cpu", "nodes": 1, "gpus_per_node": 1, "hosts": [host], "environments": environment}
    mapping = demo_job(folder, cluster)
    mapping["model"] = {"hf_config": dict(config), "path": str(model)}
    if name in REFUSED:
        # A rule refuses gpt-oss's full training under DDP, whose attention sinks would be fp32.
        mapping["training"]["method"] = "lora"
    if name in RECOMPUTE:
        mapping["parallel"] = {**mapping.get("parallel", {}), "recompute": RECOMPUTE[name]}
    mapping["training"] |= {"max_steps": 1, "save_steps": 1000, "output_dir": str(folder / "out" / name)}
    job, problems = parse_job(mapping)
    assert job is not None, problems
    return dict(yaml.safe_load(render(job, place(job)).files[CONFIG]))


REFUSED = {"gpt_oss": "load_and_register_kernel"}
"""Families that this version of the engine cannot load -> part of its error. The preflight refuses these launches."""


REFUSED_BY_A_RULE = {"glm_moe_dsa": "sees_later_tokens"}
"""Families that the engine would train wrongly -> the rule that refuses them."""
RECOMPUTE = {"gemma3n_text": "none"}
"""What a rule demands of a family: Gemma 3n's layers share keys, which reentrant checkpoints lose."""


@pytest.mark.parametrize("name", REFUSED_BY_A_RULE)
def test_a_family_that_the_engine_would_train_wrongly_is_refused_by_a_rule(tmp_path: Path, name: str) -> None:
    subprocess.run([NODE_PYTHON, tiny_model.__file__, tmp_path], check=True, capture_output=True)
    with pytest.raises(ProblemsError) as caught:
        arguments(tmp_path, name, SMALL_MODELS[name])
    assert [problem.code for problem in caught.value.problems] == [REFUSED_BY_A_RULE[name]]


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_the_preflight_refuses_fails_in_the_engine_too(losses: Mapping[str, Any], name: str) -> None:
    assert REFUSED[name] in losses[name]


@pytest.mark.parametrize("name", [name for name in SMALL_MODELS if name not in {*REFUSED, *REFUSED_BY_A_RULE}])
def test_one_step_of_a_small_model_has_the_loss_of_random_weights(losses: Mapping[str, Any], name: str) -> None:
    assert losses[name] == pytest.approx(LOSS_OF_RANDOM_WEIGHTS, rel=0.3), losses[name]
