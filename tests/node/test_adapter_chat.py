"""A chat with adapters: LLaMA-Factory loads them on the base model, and the answers are those of the merged model."""

import json
import subprocess
from pathlib import Path

import pytest

from app.demo.tiny_model import MODEL_FOLDER, TEMPLATE
from backend.engines.inference import model_keys
from tests.nodes import skip_without_node_environment
from tools.browser import CHECKOUT
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines]  # It imports LLaMA-Factory and loads three models.

MAKE = """import sys, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
model, adapter, merged = sys.argv[1:]
torch.manual_seed(1)
made = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=4, target_modules="all-linear"))
for name, weight in made.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(weight, std=0.5)
made.save_pretrained(adapter)
made.merge_and_unload().save_pretrained(merged)
AutoTokenizer.from_pretrained(model).save_pretrained(merged)
"""
ASK = """import json, sys
from backend.node.serving.chat_request import parse
from backend.node.serving.model import Model
body = {"messages": [{"role": "user", "content": "What day comes after Monday?"}], "max_tokens": 12, "temperature": 0}
models = json.loads(sys.argv[1])
answers = {name: "".join(Model(args).answer(parse(body), lambda: False)) for name, args in models.items()}
print("answers" + json.dumps(answers), flush=True)
import os
os._exit(0)
"""


def run(program: str, *arguments: str) -> str:
    command = [str(NODE_PYTHON), "-W", "ignore", "-c", program, *arguments]
    return subprocess.run(command, check=True, cwd=CHECKOUT, capture_output=True, text=True, timeout=600).stdout


def test_the_answers_with_adapters_are_those_of_the_merged_model_and_not_of_the_base_model(tmp_path: Path) -> None:
    skip_without_node_environment()
    build = [str(NODE_PYTHON), "app/demo/tiny_model.py", str(tmp_path)]
    subprocess.run(build, check=True, cwd=CHECKOUT, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True)
    base, adapter, merged = (str(tmp_path / name) for name in (MODEL_FOLDER, "adapter", "merged"))
    run(MAKE, base, adapter, merged)
    shared = {"template": TEMPLATE, "infer_dtype": "float32", "infer_backend": "huggingface"}
    models = {
        "base": model_keys(base),
        "adapter": model_keys(base, adapter),
        "merged": model_keys(merged),
    }
    output = run(ASK, json.dumps({name: {**shared, **keys} for name, keys in models.items()}))
    answers = json.loads(output.rpartition("answers")[2])
    assert answers["adapter"]
    assert answers["adapter"] == answers["merged"] != answers["base"]
