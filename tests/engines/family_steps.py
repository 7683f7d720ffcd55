"""Train one step of each of several models by LLaMA-Factory. A node's Python runs this file.

Each model has a process of its own, forked after the imports: accelerate keeps its state for the whole process.

It reads {name: {"config": config.json, or null if the folder has the model; "arguments": the engine's YAML}} and
prints {name: loss, or the error} as the last line. The folder in `model_name_or_path` must hold a tokenizer; random
weights are written there.
"""

import json
import math
import multiprocessing
import os
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from llamafactory.train.tuner import run_exp
from transformers import AutoConfig, AutoModelForCausalLM

FORK = multiprocessing.get_context("fork")


def main() -> None:
    given = json.load(sys.stdin)
    results: dict[str, Any] = {}
    for name, case in given.items():
        receiver, sender = FORK.Pipe(duplex=False)
        process = FORK.Process(target=run_case, args=(case, sender))
        process.start()
        sender.close()
        try:
            results[name] = receiver.recv()
        except EOFError:
            results[name] = "the process ended without a result"
        process.join()
    print(f"\n{json.dumps(results)}")


def run_case(case: dict[str, Any], sender: Connection) -> None:
    """Send the loss of the step, or the error. The process is the only rank, as under torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update({**rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    try:
        sender.send(step(case["config"], case["arguments"]))
    except Exception as error:
        traceback.print_exc()
        sender.send(f"{type(error).__name__}: {error}"[:500])


def step(config: dict[str, Any] | None, arguments: dict[str, Any]) -> float:
    """Return the loss of the only step."""
    torch.manual_seed(0)
    if config:
        values = {key: value for key, value in config.items() if key != "model_type"}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **values))
        model.save_pretrained(arguments["model_name_or_path"])
    run_exp(arguments)
    log = Path(arguments["output_dir"]) / "trainer_state.json"
    losses = [row["loss"] for row in json.loads(log.read_text())["log_history"] if "loss" in row]
    if len(losses) != 1 or not math.isfinite(losses[0]):
        raise ValueError(f"losses: {losses}")
    return float(losses[0])


if __name__ == "__main__":
    main()
