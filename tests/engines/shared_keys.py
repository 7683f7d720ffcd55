"""Print how far gradients with LLaMA-Factory's checkpoints are from those without, in a small model.

    shared_keys.py KEYS        KEYS: config.json as JSON

The answer is {"reentrant": error, "not reentrant": error}; an error is the largest relative one of a weight.
"""

import json
import sys
from functools import partial
from typing import Any

import torch
from llamafactory.model.model_utils.checkpointing import get_custom_gradient_checkpointing_func
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING


def gradients(keys: dict[str, Any], use_reentrant: bool | None) -> dict[str, torch.Tensor]:
    """Return the gradients of one step; None: without checkpoints."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[keys["model_type"]].from_dict(keys)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().train()
    if use_reentrant is not None:
        function = get_custom_gradient_checkpointing_func(partial(checkpoint, use_reentrant=use_reentrant))
        model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
    tokens = torch.randint(3, keys["vocab_size"], (2, 32))
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def main() -> None:
    """Print the errors as JSON."""
    keys = json.loads(sys.argv[1])
    right = gradients(keys, None)
    errors = {}
    for name, use_reentrant in (("reentrant", True), ("not reentrant", False)):
        tried = gradients(keys, use_reentrant)
        errors[name] = max(float((tried[key] - each).norm() / each.norm()) for key, each in right.items())
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
