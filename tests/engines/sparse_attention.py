"""Print what a small model does with the tokens after a token, and which weights get no gradient in one step.

PYTHON tests/engines/sparse_attention.py MODEL_TYPE
"""

import json
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.small_models import NEWER_MODELS, SMALL_MODELS

TOKENS = 64


def change(model: Any, tokens: torch.Tensor) -> float:
    """Return the largest change of an output before the last token, if that token is another one."""
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % 500
    with torch.no_grad():
        outputs = [model(input_ids=each, use_cache=False).logits[:, :-1] for each in (tokens, other)]
    return float((outputs[0] - outputs[1]).abs().max())


def main() -> None:
    """Print {attention: change} and the names of the weights without a gradient as JSON."""
    [name] = sys.argv[1:]
    keys = {**SMALL_MODELS, **NEWER_MODELS}[name]
    config = CONFIG_MAPPING[name](**{key: value for key, value in keys.items() if key != "model_type"})
    tokens = torch.randint(3, 500, (2, TOKENS))
    changes = {}
    for attention in ("sdpa", "eager"):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
        changes[attention] = change(model, tokens)
    model.train()(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    idle = [key for key, weight in model.named_parameters() if weight.grad is None]
    print(json.dumps({"changes": changes, "without_gradient": idle}))


if __name__ == "__main__":
    main()
