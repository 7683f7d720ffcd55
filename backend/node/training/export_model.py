"""Export of a run's checkpoint as a Hugging Face model, without a GPU. The supervisor starts it on a node.

    export_model.py FOLDER

FOLDER/export.json has `kind`, `source`, `target`, and for merge `model` and `template`. Kind merge: LLaMA-Factory
merges adapters into their model. Kind merge_swift: ms-swift does; `names` are its names of the model's type and
template. Kind megatron: mcore_adapter converts its own checkpoint. The target appears whole,
and replaces nothing. node_programs.py puts own_folder.py before this module.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from typing import Any

from backend.node.own_folder import make_own

KEPT = ("generation_config.json", "chat_template.jinja")
"""Files that a server reads but a converter does not write."""


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    with open(f"{folder}/export.json", encoding="utf-8") as file:
        request = json.load(file)
    target = request["target"]
    parts = f"{target}.megaboard-part"
    part = f"{parts}/model"
    if os.path.lexists(target):
        sys.exit(f"megaboard: {target} is there already")
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    shutil.rmtree(parts, ignore_errors=True)
    try:
        make_own(parts)
    except OSError as error:
        sys.exit(f"megaboard: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        CONVERTERS[request["kind"]](request, part)
        keep(request["source"], part)
        os.rename(part, target)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    print("megaboard: exported", target, flush=True)


def keep(source: str, part: str) -> None:
    """Copy the model's files that the converter has not written."""
    for name in KEPT:
        origin = os.path.join(source, name)
        if os.path.isfile(origin) and not os.path.exists(os.path.join(part, name)):
            shutil.copy(origin, part)


def merge(request: dict[str, Any], part: str) -> None:
    """Export with LLaMA-Factory (0.9.5 src/llamafactory/train/tuner.py, export_model)."""
    from llamafactory.train.tuner import export_model

    export_model(
        {
            "model_name_or_path": request["model"],
            "adapter_name_or_path": request["source"],
            "template": request["template"],
            "finetuning_type": "lora",
            "infer_dtype": request["dtype"],
            "export_dir": part,
            "export_device": "cpu",
        }
    )


def merge_with_swift(request: dict[str, Any], part: str) -> None:
    """Export with ms-swift (4.6.0 swift/pipelines/export/merge_lora.py)."""
    from swift.pipelines import export_main

    arguments = {
        "model": request["model"],
        "adapters": request["source"],
        **request["names"],
        "torch_dtype": request["dtype"],
        "merge_lora": "true",
        "output_dir": part,
    }
    export_main([word for key, value in arguments.items() for word in (f"--{key}", value)])


def convert_megatron(request: dict[str, Any], part: str) -> None:
    """Convert with mcore_adapter, in the precision of the weights. Only one shard at a time is in memory."""
    from mcore_adapter.models.converter.post_converter import convert_checkpoint_to_hf

    convert_checkpoint_to_hf(request["source"], part)


CONVERTERS = {"merge": merge, "merge_swift": merge_with_swift, "megatron": convert_megatron}

if __name__ == "__main__":
    main()
