"""Runs on a node, by the supervisor: a Hugging Face model from what a run has saved, without a GPU.

    export_model.py FOLDER

FOLDER/export.json: `kind` (merge: adapters into their model, by LLaMA-Factory; megatron: mcore_adapter's checkpoint, by
its own converter), `source`, `target`, and for merge `model` and `template`. The target appears whole, and never in the
place of something else. Standard library, and the program that converts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from typing import Any

KEPT = ("generation_config.json", "chat_template.jinja")
"""What a converter leaves behind although a server reads it."""


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    with open(f"{folder}/export.json", encoding="utf-8") as file:
        wanted = json.load(file)
    target = wanted["target"]
    part = f"{target}.megaboard-part"
    if os.path.lexists(target):
        sys.exit(f"megaboard: {target} is there already")
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        CONVERTERS[wanted["kind"]](wanted, part)
        keep(wanted["source"], part)
        os.rename(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print("megaboard: exported", target, flush=True)


def keep(source: str, part: str) -> None:
    """Copy what belongs to the model and the converter has not written."""
    for name in KEPT:
        origin = os.path.join(source, name)
        if os.path.isfile(origin) and not os.path.exists(os.path.join(part, name)):
            shutil.copy(origin, part)


def merge(wanted: dict[str, Any], part: str) -> None:
    """LLaMA-Factory 0.9.5's own export (src/llamafactory/train/tuner.py, export_model)."""
    from llamafactory.train.tuner import export_model

    export_model(
        {
            "model_name_or_path": wanted["model"],
            "adapter_name_or_path": wanted["source"],
            "template": wanted["template"],
            "finetuning_type": "lora",
            "infer_dtype": wanted["dtype"],
            "export_dir": part,
            "export_device": "cpu",
        }
    )


def convert_megatron(wanted: dict[str, Any], part: str) -> None:
    """mcore_adapter's own converter, in the precision that the weights are in; one shard at a time is in memory."""
    from mcore_adapter.models.converter.post_converter import convert_checkpoint_to_hf

    convert_checkpoint_to_hf(wanted["source"], part)


CONVERTERS = {"merge": merge, "megatron": convert_megatron}

if __name__ == "__main__":
    main()
