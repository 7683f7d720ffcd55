"""Reads what is wrong with a model's folder on a node: its config.json, weight files, the modules that LoRA names."""

from __future__ import annotations

import json
import os
from typing import Any

from backend.node.config_text import config_fault
from backend.node.regular_file import open_regular, read_json, read_regular

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
"""Lists of a model's weight files. transformers reads the first that exists."""
SINGLE = "model.safetensors"
LARGEST_HEADER = 64 << 20
LARGEST_CONFIG = 16 << 20
POINTER = b"version https://git-lfs"
"""Begin of the small file that a clone without git-lfs has in place of a weight file."""
LACKING_SHOWN = 8


def fault_of_config(folder: str) -> dict[str, Any] | None:
    """Return why a model's config.json cannot be read as one (config_text.py); None if it can, or if there is none."""
    try:
        text = read_regular(os.path.join(folder, "config.json"), LARGEST_CONFIG).decode("utf-8")
    except UnicodeDecodeError:
        return {"fault": "config_not_text", "line": 1, "column": 1}
    except FileNotFoundError:
        return None
    except OSError:
        return {"fault": "config_unreadable", "line": 1, "column": 1}
    return config_fault(text)


def lacking_weights(folder: str) -> list[str]:
    """Return the weight files of a model that its index names and that are missing, and those that are pointers."""
    try:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()}
    except OSError:
        return []
    index = next((name for name in INDEXES if name in sizes), None)
    wanted: set[str] = set()
    if index:
        try:
            wanted = {str(name) for name in read_json(os.path.join(folder, index))["weight_map"].values()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return [index]
    missing = {name for name in wanted if name not in sizes}
    small = {name for name, size in sizes.items() if size < 1 << 10 and name.endswith((".safetensors", ".bin"))}
    return sorted(missing | {name for name in small if is_pointer(os.path.join(folder, name))})[:LACKING_SHOWN]


def is_pointer(path: str) -> bool:
    try:
        return read_regular(path, 1 << 10).startswith(POINTER)
    except OSError:
        return False


def unmatched_targets(folder: str, targets: list[str]) -> list[str]:
    """Return the LoRA targets that no module with weights has as its name, or as the end of its name.

    peft matches names in the same way (tuners_utils.py check_target_module_exists). Empty for weights without a list
    of names.
    """
    names = weight_names(folder)
    modules = {name.rpartition(".")[0] for name in names}
    if not modules:
        return []
    return [name for name in targets if not any(f".{module}".endswith(f".{name}") for module in modules)]


def weight_names(folder: str) -> list[str]:
    """Return the names of a model's weights: from its index, or from the header of its only file."""
    for index in INDEXES:
        try:
            return [str(name) for name in read_json(os.path.join(folder, index))["weight_map"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    try:
        return list(header_of(os.path.join(folder, SINGLE)))
    except (OSError, ValueError):
        return []


def header_of(path: str) -> dict[str, Any]:
    """Return the header of a safetensors file: 8 bytes of size, then JSON
    (https://huggingface.co/docs/safetensors/index#format). Raises OSError or ValueError.
    """
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= LARGEST_HEADER:
            raise ValueError("no header")
        header = json.loads(file.read(size))
    if not isinstance(header, dict):
        raise ValueError("no header")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}
