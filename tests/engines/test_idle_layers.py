"""Two ranks of LLaMA-Factory's DDP train a model with layers that no forward pass runs, as MiMo-7B's own code has them.

The rule `idle_layers` refuses the runs that fail here.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.demo import tiny_model
from tests.engines.test_families import arguments
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(900), needs_node_environment]

CODE = """
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class IdleConfig(LlamaConfig):
    model_type = "idle"


class IdleForCausalLM(LlamaForCausalLM):
    config_class = IdleConfig

    def __init__(self, config):
        super().__init__(config)
        self.mtp_layers = nn.ModuleDict({"idle_proj": nn.Linear(config.hidden_size, config.hidden_size)})
        self.post_init()
"""
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
}  # fmt: skip
WRITE = """
import sys
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
AutoModelForCausalLM.from_config(config, trust_remote_code=True).save_pretrained(sys.argv[1])
"""
RUN = "from llamafactory.train.tuner import run_exp; run_exp()"
UNUSED = "Expected to have finished reduction in the prior iteration"
LORA = {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "all"}
FOUND = {"ddp_find_unused_parameters": True}
NOT_REENTRANT = {"use_reentrant_gc": False}
CASES: Mapping[str, tuple[dict[str, Any], str]] = {
    "full": ({}, UNUSED),
    "full, not reentrant": (NOT_REENTRANT, UNUSED),
    "full, found": (FOUND, "mark a variable ready only once"),
    "full, found, not reentrant": ({**FOUND, **NOT_REENTRANT}, ""),
    "full, no checkpoints": ({"disable_gradient_checkpointing": True}, ""),
    "LoRA, no checkpoints": ({**LORA, "disable_gradient_checkpointing": True}, UNUSED),
    "LoRA, found, not reentrant": ({**LORA, **FOUND, **NOT_REENTRANT}, ""),
}
"""Name -> what changes in the engine's configuration, and the error that follows; none if it trains."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tiny model's data and tokenizer."""
    folder = tmp_path_factory.mktemp("idle")
    subprocess.run([NODE_PYTHON, tiny_model.__file__, folder], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_ddp_must_look_for_idle_layers_and_checkpoint_without_reentry(folder: Path, name: str, tmp_path: Path) -> None:
    changes, error = CASES[name]
    classes = {"AutoConfig": "idle.IdleConfig", "AutoModelForCausalLM": "idle.IdleForCausalLM"}
    values = arguments(folder, re.sub(r"\W+", "-", name), {"model_type": "llama", **SIZES, "num_key_value_heads": 4})
    model = Path(values["model_name_or_path"])
    (model / "idle.py").write_text(CODE)
    (model / "config.json").write_text(json.dumps({"model_type": "idle", "auto_map": classes, **SIZES}))
    subprocess.run([NODE_PYTHON, "-W", "ignore", "-c", WRITE, model], check=True, capture_output=True)
    values |= {"trust_remote_code": True, "max_steps": 2, "dataloader_num_workers": 0, **changes}
    result = train(values, tmp_path)
    shutil.rmtree(model)
    assert (error in result.stderr) if error else (result.returncode == 0), result.stderr[-3000:]


def train(values: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    (folder / "run.py").write_text(RUN)
    launcher = [NODE_PYTHON, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*launcher, folder / "run.py", folder / "config.yaml"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
