"""Write a small model that no table of Megaboard describes, with random weights.

A node's Python runs this file: `python unknown_models.py TOKENIZER FOLDER`. TOKENIZER is the folder of a model whose
tokenizer it gets.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

PROFILED = "profiled"
"""Folder of a model that transformers knows."""

PERSIMMON = {
    "model_type": "persimmon", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 1024,
}  # fmt: skip


def write(folder: Path, config: dict[str, Any], tokenizer: Path) -> None:
    """Write config.json, weights and tokenizer of a model."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for file in tokenizer.glob("token*"):
        shutil.copy(file, folder)
    torch.manual_seed(0)
    read = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(read)
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    given, root = Path(sys.argv[1]), Path(sys.argv[2])
    (root / PROFILED).mkdir()
    write(root / PROFILED, PERSIMMON, given)
