"""Forward FLOPs that torch's counter counts in small models of many families, beside our formula.

    .venv-node/bin/python -m benchmarks.flops_counted [--newer] [--json] [NAME ...]

Needs the node environment (torch, transformers). The counter knows matrix products and convolutions, so attention and
experts run as plain products. It counts the whole square of scores, so the formula does too. The scan of a state space
is no product.
"""

import argparse
import json
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from backend.estimate.memory.stage import Trained
from backend.estimate.model.flops import layer_flops
from backend.estimate.model.layers import LayerKind, counted_kinds
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.work import pipeline_work
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from benchmarks.cross_attention_images import cross_attention_images
from benchmarks.language_part import language_model
from benchmarks.small_models import NEWER_MODELS, SEEING, SMALL_MODELS

TOKENS = 128


def formula(name: str) -> float:
    """Return the operations of one sequence, in layers and output, with the whole square of scores."""
    if name in SEEING:
        return _with_an_image(name)
    layers = model_layers(parse_model({**SMALL_MODELS, **NEWER_MODELS}[name]))
    every = [*counted_kinds(layers), *((end, 1) for end in (layers.stem, layers.output) if end)]
    return TOKENS * sum(count * _forward(kind) for kind, count in every)


def _forward(kind: LayerKind) -> float:
    flops = layer_flops(kind)
    return float(flops.forward(TOKENS) + flops.attention * TOKENS)


def _with_an_image(name: str) -> float:
    shape = parse_model(SEEING[name])
    if shape.vision is None:
        raise ValueError(f"{name} has no tower")
    layers = model_layers(shape)
    plan = Plan(
        sequence_length=TOKENS,
        micro_batches=1,
        images=1,
        patches=shape.vision.image_patches,
        image_keys=shape.vision.keys,
    )
    [work] = pipeline_work(layers, plan, Trained())
    other_half = sum(
        count * layer_flops(kind).attention for kind, count in counted_kinds(layers) if kind.of_images is None
    )
    return float(work.forward + other_half * TOKENS**2)


def counted(name: str) -> float:
    """Return the operations that torch counts."""
    config: Any = CONFIG_MAPPING[name].from_dict(dict({**SMALL_MODELS, **NEWER_MODELS, **SEEING}[name]))
    torch.manual_seed(0)
    build = AutoModelForImageTextToText.from_config if name in SEEING else language_model
    model = build(config, attn_implementation="eager", experts_implementation="eager").eval()
    images = cross_attention_images(1, TOKENS) if name in SEEING else {}
    tokens = torch.randint(0, 500, (1, TOKENS))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, use_cache=False, **images)
    return float(counter.get_total_flops())


def main() -> None:
    """Print one line for each family, or JSON {family: [torch's, ours]}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--newer", action="store_true", help="types of a later transformers")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    results: dict[str, tuple[float, float]] = {}
    for name in chosen.names or (NEWER_MODELS if chosen.newer else (*SMALL_MODELS, *SEEING)):
        results[name] = counted(name), formula(name)
        if not chosen.json:
            torchs, ours = results[name]
            print(f"{name:24} {torchs:14.0f} {ours:14.0f} {ours / torchs - 1:+7.2%}", flush=True)
    if chosen.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
