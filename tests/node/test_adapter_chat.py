"""A chat with adapters: the engine loads them on the base model, and the answers are those of the merged model."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.demo.tiny_model import MODEL_FOLDER, TEMPLATE
from backend.engines.inference import model_keys
from backend.engines.swift_inference import swift_model_keys
from backend.runs.launch.derived_start import chat_request
from tests.engines.jobs import job
from tests.nodes import skip_without_node_environment
from tools.browser import CHECKOUT
from tools.programs import NODE_PYTHON, SWIFT, swift_python

pytestmark = [pytest.mark.e2e, pytest.mark.engines]  # It imports the engines and loads six models.

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
from backend.node.serving import llamafactory_chat, swift_chat
from backend.node.serving.chat_request import parse
from backend.node.serving.model import Model
load = {"llamafactory": llamafactory_chat.LlamaFactoryChat, "swift": swift_chat.SwiftChat}[sys.argv[1]]
body = {"messages": [{"role": "user", "content": "What day comes after Monday?"}], "max_tokens": 12, "temperature": 0}
models = {name: Model(load(args)) for name, args in json.loads(sys.argv[2]).items()}
answers = {name: "".join(model.answer(parse(body), lambda: False)) for name, model in models.items()}
endless = models["base"].answer(parse({**body, "max_tokens": 8192}), lambda: False)
pieces = [next(endless), next(endless)]
endless.close()
answers["after a stop"] = "".join(models["base"].answer(parse(body), lambda: False))
print("answers" + json.dumps(answers), flush=True)
import os
os._exit(0)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the folders of a base model, of adapters, and of both merged."""
    skip_without_node_environment()
    root = tmp_path_factory.mktemp("adapters")
    build = [str(NODE_PYTHON), "app/demo/tiny_model.py", str(root)]
    subprocess.run(build, check=True, cwd=CHECKOUT, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True)
    made = {name: str(root / folder) for name, folder in
            (("base", MODEL_FOLDER), ("adapter", "adapter"), ("merged", "merged"))}  # fmt: skip
    run(NODE_PYTHON, MAKE, *made.values())
    return made


def run(python: str | Path, program: str, *arguments: str) -> str:
    command = [str(python), "-W", "ignore", "-c", program, *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("engine", ["llamafactory", "swift"])
def test_the_answers_with_adapters_are_those_of_the_merged_model_and_a_stop_frees_the_model(
    folders: dict[str, str], engine: str
) -> None:
    python = swift_python() if engine == "swift" else str(NODE_PYTHON)
    if python is None:
        pytest.skip(f"no ms-swift here: `make engines` installs it, or {SWIFT} names a Python that has it")
    trained = job(engine=f"{engine}-ddp", model__path=folders["base"], training__template=TEMPLATE,
                  training__precision="fp32")  # fmt: skip
    request: Any = chat_request(trained, ["base"], None)
    keys: Any = swift_model_keys if engine == "swift" else model_keys
    shared = request["args"] if engine == "swift" else {**request["args"], "infer_backend": "huggingface"}
    models = {
        "base": keys(folders["base"]),
        "adapter": keys(folders["base"], folders["adapter"]),
        "merged": keys(folders["merged"]),
    }
    output = run(python, ASK, engine, json.dumps({name: {**shared, **model} for name, model in models.items()}))
    answers = json.loads(output.rpartition("answers")[2])
    assert answers["adapter"]
    assert answers["adapter"] == answers["merged"] != answers["base"]
    assert answers["after a stop"] == answers["base"]
