"""Forward FLOPs that torch's counter counts in small models of many families, beside our formula.

    .venv-node/bin/python -m benchmarks.flops_counted [--json] [NAME ...]

Needs the node environment (torch, transformers). The counter knows matrix products and convolutions, so attention and
experts run as plain products. It counts the whole square of scores, so the formula does too. The scan of a state space
is no product.
"""

import argparse
import json
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from backend.estimate.model.flops import layer_flops
from backend.estimate.model.layers import LayerKind, counted_kinds
from backend.estimate.model.model_layers import model_layers
from backend.job.model import parse_model
from benchmarks.small_models import SMALL_MODELS

TOKENS = 128


def formula(name: str) -> float:
    """Return the operations of one sequence, in layers and output, with the whole square of scores."""
    layers = model_layers(parse_model(SMALL_MODELS[name]))
    every = [*counted_kinds(layers), *((end, 1) for end in (layers.stem, layers.output) if end)]
    return TOKENS * sum(count * _forward(kind) for kind, count in every)


def _forward(kind: LayerKind) -> float:
    flops = layer_flops(kind)
    return float(flops.weights + flops.recurrence + 2 * flops.attention * TOKENS)


def counted(name: str) -> float:
    """Return the operations that torch counts."""
    config: Any = CONFIG_MAPPING[name].from_dict(dict(SMALL_MODELS[name]))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
    tokens = torch.randint(0, 500, (1, TOKENS))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, use_cache=False)
    return float(counter.get_total_flops())


def main() -> None:
    """Print one line for each family, or JSON {family: [torch's, ours]}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    results: dict[str, tuple[float, float]] = {}
    for name in chosen.names or SMALL_MODELS:
        results[name] = counted(name), formula(name)
        if not chosen.json:
            torchs, ours = results[name]
            print(f"{name:24} {torchs:14.0f} {ours:14.0f} {ours / torchs - 1:+7.2%}", flush=True)
    if chosen.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
