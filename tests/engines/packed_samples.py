"""What models make of LLaMA-Factory's packs, in one forward pass of each on CPU. A node's Python runs this file.

It reads {name: config.json} and prints {name: {"later": the largest change of the second sample's logits if the last
token of the first changes, "short": the error with 4 positions too few, "balance": that of the balance loss}}, or the
error in place of a value. The mask is that of LLaMA-Factory's own collator.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from llamafactory.data.collator import prepare_4d_attention_mask
from transformers import AutoConfig, AutoModelForCausalLM

LENGTHS = (24, 32, 8)
"""Tokens of the two samples, and of the padding."""


def error_of(function: Callable[[], Any]) -> Any:
    """Return the result, or the error as text."""
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def answers(config: dict[str, Any]) -> dict[str, Any]:
    """Return the three answers of a model with random weights."""
    torch.manual_seed(0)
    values = {key: value for key, value in config.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **values)).eval()
    first, second, _ = LENGTHS
    samples = torch.tensor([[number for number, length in zip((1, 2, 0), LENGTHS, strict=True)
                             for _ in range(length)]] * 2)  # fmt: skip
    positions = torch.tensor([[place for length in LENGTHS for place in range(length)]] * 2)
    mask = prepare_4d_attention_mask(samples, torch.float32)
    tokens = torch.randint(3, 400, samples.shape)
    other = tokens.clone()
    other[:, first - 1] = (other[:, first - 1] + 7) % 400 + 3

    def logits(ids: torch.Tensor, places: torch.Tensor, **more: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model(input_ids=ids, attention_mask=mask, position_ids=places, **more).logits
        return found[:, first : first + second]

    return {
        "later": error_of(lambda: float((logits(tokens, positions) - logits(other, positions)).abs().max())),
        "short": error_of(lambda: float(logits(tokens, positions[:, :-4]).mean())),
        "balance": error_of(lambda: float(logits(tokens, positions, output_router_logits=True).mean())),
    }


if __name__ == "__main__":
    print(
        "\n"
        + json.dumps({name: error_of(lambda c=config: answers(c)) for name, config in json.load(sys.stdin).items()})
    )
