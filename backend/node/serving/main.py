"""Starts one process per model, and ends when one of them ends or nobody asks any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from backend.node.model_process import start_model

from .backends import choose_backend
from .llamafactory_chat import LlamaFactoryChat
from .model import Model
from .server import serve
from .swift_chat import SwiftChat

TICK_S = 0.5
NOTE_S = 300.0
"""The log grows at least this often, so that the supervisor sees no stall while the models wait."""


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    with open(f"{folder}/serve.json", encoding="utf-8") as file:
        request = json.load(file)
    if len(sys.argv) > 2:
        serve_one(folder, request["engine"], request["models"][int(sys.argv[2])])
        return
    children = [start_model(folder, rank, model["devices"]) for rank, model in enumerate(request["models"])]
    names = [model["name"] for model in request["models"]]
    raise SystemExit(watch(folder, children, names, request["idle_s"]))


def serve_one(folder: str, engine: str, model: dict[str, Any]) -> None:
    args = dict(model["args"])
    if engine == "swift":
        serve(folder, model["name"], lambda: Model(SwiftChat(args)), "huggingface")
        return
    has_adapter, is_quantized = "adapter_name_or_path" in args, "quantization_bit" in args
    args["infer_backend"] = choose_backend(model["devices"], is_quantized, has_adapter)
    serve(folder, model["name"], lambda: Model(LlamaFactoryChat(args)), args["infer_backend"])


def watch(folder: str, children: list[subprocess.Popen[bytes]], names: list[str], idle_s: float) -> int:
    """Return the exit status of the program: that of the first process that ends, or 0 after `idle_s`."""
    noted = 0.0
    while True:
        for name, child in zip(names, children):
            status = child.poll()
            if status is not None:
                print(f"megaboard: the server of {name} ended with status {status}", flush=True)
                return status or 1
        idle = idle_time(folder, names)
        if idle > idle_s:
            print(f"megaboard: nobody asked for {idle:.0f} s", flush=True)
            return 0
        if time.monotonic() - noted > NOTE_S:
            noted = time.monotonic()
            print(f"megaboard: {', '.join(names)}; idle for {idle:.0f} s", flush=True)
        time.sleep(TICK_S)


def idle_time(folder: str, names: list[str]) -> float:
    """Return since when nobody asks, in seconds; 0 while a model is loading."""
    if not all(os.path.exists(f"{folder}/server.{name}.json") for name in names):
        return 0.0
    return time.time() - max(os.path.getmtime(f"{folder}/active.{name}") for name in names)


if __name__ == "__main__":
    main()
