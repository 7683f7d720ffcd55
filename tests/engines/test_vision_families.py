"""LLaMA-Factory trains one real step with images of small models of vision-language families, on CPU.

The files are those that Megaboard renders.
"""

import json
import math
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
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.mapping import parse_job
from backend.job.model import parse_model
from tests.e2e.engine_runs import EXTRA
from tests.engines.jobs import place
from tests.nodes import needs_node_environment
from tools import tiny_data
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1800), needs_node_environment]

TEMPLATES = {
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_vl",
    "llava": "llava",
    "gemma3": "gemma3",
    "paligemma": "paligemma",
    "mllama": "mllama",
}
"""Family -> LLaMA-Factory's template."""
REENTRANT = ("mllama",)
"""Families whose reentrant checkpoints work only if nothing of images needs a gradient."""
LORA = {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "all"}
CROSSED = {
    "mllama, projector": {"freeze_multi_modal_projector": False},
    "mllama, LoRA": LORA,
    "mllama, projector, not reentrant": {"freeze_multi_modal_projector": False, "use_reentrant_gc": False},
    "mllama, LoRA, not reentrant": {**LORA, "use_reentrant_gc": False},
}
"""More runs of a family: what changes in the engine's configuration."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small model of each family, and data with pictures."""
    folder = tmp_path_factory.mktemp("vision")
    if not (EXTRA / "torchvision").exists():
        pytest.skip("no torchvision here: `make engines` installs it")
    _run([tiny_model.__file__, folder])
    tiny_data.write_datasets(folder)
    program = Path(__file__).with_name("vision_models.py")
    for family in TEMPLATES:
        _run([program, family, folder / family, folder / tiny_model.MODEL_FOLDER])
    _run([program, "pictures", folder / tiny_model.DATA_FOLDER, ""])
    return folder


def _run(command: list[Any], stdin: str = "") -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(EXTRA)}
    process = subprocess.run([NODE_PYTHON, "-W", "ignore", *command], input=stdin, capture_output=True, text=True,
                             env=environment, check=False)  # fmt: skip
    sys.stderr.write(process.stderr[-4000:])
    assert process.returncode == 0
    return process.stdout


@pytest.fixture(scope="module")
def losses(folder: Path) -> Mapping[str, Any]:
    cases = {family: {"config": None, "arguments": arguments(folder, family)} for family in TEMPLATES}
    for name, changes in CROSSED.items():
        base = arguments(folder, name.partition(",")[0])
        changed = {**base, **changes, "output_dir": f"{base['output_dir']}-{len(cases)}"}
        cases[name] = {"config": None, "arguments": changed}
    values: dict[str, Any] = json.loads(
        _run([Path(__file__).with_name("family_steps.py")], json.dumps(cases)).splitlines()[-1]
    )
    return values


def arguments(folder: Path, family: str) -> dict[str, Any]:
    """Return the engine's configuration for one step with images; the tower is frozen, the rest is trained."""
    cluster = {"gpu": "cpu", "nodes": 1, "gpus_per_node": 1, "hosts": [{"address": "127.0.0.1"}],
               "environments": {"llamafactory": {"python": str(NODE_PYTHON)}}}  # fmt: skip
    mapping = demo_job(folder, cluster)
    config = json.loads((folder / family / "config.json").read_text())
    mapping["model"] = {"hf_config": config, "path": str(folder / family)}
    mapping["training"] |= {
        "max_steps": 1, "save_steps": 1000, "output_dir": str(folder / "out" / family), "cutoff_len": 256,
        "dataset": tiny_data.PICTURES, "template": TEMPLATES[family], "image_max_pixels": 4096,
        "freeze": {"vision_tower": True, "projector": family in REENTRANT},
    }  # fmt: skip
    job, problems = parse_job(mapping)
    assert job is not None, problems
    return dict(yaml.safe_load(render(job, place(job)).files[CONFIG]))


@pytest.mark.parametrize("family", TEMPLATES)
def test_one_step_with_images_has_the_loss_of_random_weights(
    losses: Mapping[str, Any], folder: Path, family: str
) -> None:
    config = json.loads((folder / family / "config.json").read_text())
    vocabulary = parse_model(config).vocab
    assert losses[family] == pytest.approx(math.log(vocabulary), rel=0.3), losses[family]
    saved = json.loads(_run([Path(__file__).with_name("vision_models.py"), "count", folder / family, ""]))
    assert model_parameters(model_layers(parse_model(config))) == saved


@pytest.mark.parametrize("name", CROSSED)
def test_layers_that_read_images_need_checkpoints_without_reentry_if_images_have_gradients(
    losses: Mapping[str, Any], name: str
) -> None:
    """The rule image_layers_reentrant refuses the runs that fail here."""
    if "not reentrant" in name:
        assert losses[name] == pytest.approx(losses["mllama"], rel=0.01)
    else:
        assert "backward through the graph a second time" in losses[name]
