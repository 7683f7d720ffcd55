"""What peft does with the modules that LLaMA-Factory names for `all`, where classes of layers are called `Linear`.

The rules adapters_on_whole_layers and adapters_on_output say so. The models are transformers' own, without memory.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backend.job.rules.adapters import NEOX_TARGETS, WHOLE_LAYER_TARGETS
from benchmarks.small_models import NEWER_MODELS
from tests.nodes import needs_node_environment
from tools.programs import NEWER_PYTHON, NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment]
needs_newer = pytest.mark.skipif(not NEWER_PYTHON.exists(), reason="no later transformers: run `make engines`")
SIZES: dict[str, Any] = {
    "kimi_linear": NEWER_MODELS["kimi_linear"],
    "olmo_hybrid": {"num_hidden_layers": 4},
    "glm5_next": {"text_config": {"num_hidden_layers": 4}, "vision_config": {"depth": 1}},
    "gpt_neox": {"num_hidden_layers": 1},
}
PROGRAM = """
import json, sys, torch
from llamafactory.model.model_utils.misc import find_all_linear_modules
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
[name, keys, targets] = sys.argv[1:]
sees = name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
config = CONFIG_MAPPING[name](**json.loads(keys))
with torch.device("meta"):
    model = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_config(config)
names = find_all_linear_modules(model, True) if targets == "all" else targets.split(",")
try:
    model = get_peft_model(model, LoraConfig(target_modules=names, init_lora_weights=False))
    answer = sorted({key.split(".")[-4] for key, each in model.named_parameters() if each.requires_grad})
except ValueError as error:
    answer = str(error)
print(json.dumps(answer))
"""


def adapted(python: Path, name: str, targets: str) -> Any:
    """Return the names of the modules with adapters, or peft's error."""
    command = [python, "-W", "ignore", "-c", PROGRAM, name, json.dumps(SIZES[name]), targets]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


@needs_newer
@pytest.mark.parametrize("name", WHOLE_LAYER_TARGETS)
def test_peft_refuses_whole_layers_and_takes_the_names_of_the_cure(name: str) -> None:
    refused = adapted(NEWER_PYTHON, name, "all")
    assert "is not supported" in refused or "empty string" in refused
    assert adapted(NEWER_PYTHON, name, WHOLE_LAYER_TARGETS[name]) == sorted(WHOLE_LAYER_TARGETS[name].split(","))


def test_all_adapts_the_output_layer_of_gpt_neox() -> None:
    assert adapted(NODE_PYTHON, "gpt_neox", "all") == sorted(["embed_out", *NEOX_TARGETS.split(",")])
