"""Reads the Python code that a model brings in its folder. The code is not run."""

from __future__ import annotations

import ast
import os
import re
from typing import Any

from backend.node.regular_file import read_json, read_regular

LARGEST_CODE = 4 << 20
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""Files of models that take images or sounds."""
MEAN_LOSSES = ("CrossEntropyLoss", "cross_entropy")
DIVISOR = "num_items_in_batch"
DECLARATION = "accepts_loss_kwargs"


def undivided_loss(folder: str) -> str:
    """Return `file.Class` of a model with a mean loss that transformers' Trainer takes for a divided one.

    If `forward` takes any keyword, Trainer (5.6.0 trainer.py `model_accepts_loss_kwargs`, compute_loss, training_step)
    gives it `num_items_in_batch` and expects a sum of losses, divided by that number. So it multiplies the loss by the
    number of ranks, and does not divide it by the accumulated micro-batches. Empty for every other model, and where the
    code does not tell: a loss of another function, code of another repository. Also empty for a model with a processor,
    where LLaMA-Factory sets the switch (0.9.5 train/sft/trainer.py, train/pt/trainer.py).
    """
    if any(os.path.exists(os.path.join(folder, name)) for name in PROCESSORS):
        return ""
    try:
        reference = read_json(os.path.join(folder, "config.json"))["auto_map"]["AutoModelForCausalLM"]
        module, name = re.fullmatch(r"(\w+)\.(\w+)", reference).groups()  # type: ignore[union-attr]
        text = read_regular(os.path.join(folder, f"{module}.py"), LARGEST_CODE).decode("utf-8")
        classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SyntaxError, RecursionError, MemoryError):
        return ""
    if DIVISOR in text or DECLARATION in text:
        return ""
    forward = find_forward(name, classes)
    return f"{module}.{name}" if forward and forward.args.kwarg and has_mean_loss(forward) else ""


def find_forward(name: str, classes: dict[str, Any]) -> Any:
    """Return the method `forward` of a class, or of the first of its bases in the same file that has one."""
    waiting = [name]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        node = classes.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "forward":
                return method
        waiting += [base.id for base in node.bases if isinstance(base, ast.Name)]
    return None


def has_mean_loss(forward: Any) -> bool:
    """Return whether a method computes a mean cross entropy, and gives its keywords to no function of a loss.

    transformers' own functions of losses divide (5.6.0 loss/loss_utils.py fixed_cross_entropy).
    """
    calls = [node for node in ast.walk(forward) if isinstance(node, ast.Call)]
    passed = [call for call in calls if any(keyword.arg is None for keyword in call.keywords)]
    if any("loss" in name_of(call).lower() for call in passed):
        return False
    return any(
        name_of(call) in MEAN_LOSSES and all(keyword.arg != "reduction" for keyword in call.keywords) for call in calls
    )


def name_of(call: ast.Call) -> str:
    """Return the last part of the name of the function that is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))
