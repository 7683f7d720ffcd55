"""Towers that only a later transformers has: operations and the peak of a step of small models with an image each.

    OMP_NUM_THREADS=1 .venv-node/bin/newer-python -m benchmarks.newer_towers [TYPE ...]

For each type: the operations of the tower and its projector in a forward pass, by torch's counter, beside ours; and for
full training and LoRA, with and without gradient checkpointing, the peak by torch's MemTracker beside ours. A tower is
frozen under LoRA. tests/estimate/test_newer_towers.py keeps the counts of torch.

The attention of Granite's Q-Formers has dropout, for which torch has no fused kernel on CPU: it keeps queries, keys and
values in fp32, 9 of the 129 MiB of LoRA with checkpoints. The formula counts a fused kernel in 16 bits.
"""

import argparse
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from llamafactory.model.model_utils.checkpointing import get_custom_gradient_checkpointing_func
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText, AutoModelForSeq2SeqLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import STATIC_BYTES
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.layers import ModelLayers
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.work import pipeline_work
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from backend.job.traits import TRAITS
from benchmarks.small_models import IMAGE_TOKEN, TOWER_IMAGES, TOWER_MODELS
from benchmarks.step_peak import BATCH, MIB, SEQUENCE, TARGETS, Tracker, make_optimizer_states, step

GRID = 16
"""Patches along an edge of an image."""
ENDS = {"granite4_vision": 8, "hunyuan_vl": 10}
"""Tokens for the ends of eight rows, and of the image, which TOWER_IMAGES does not count."""
UNTYPED = ("granite4_vision", "minicpmv4_6", "minimax_m3_vl", "qwen3_asr", "step3p7")
"""Types whose class takes no `mm_token_type_ids`."""


def _grid(name: str, channels: int) -> dict[str, torch.Tensor]:
    patch = 14
    shape = (BATCH * GRID**2, channels, patch, patch) if name == "kimi_k25" else (BATCH * GRID**2, channels * patch**2)
    return {"pixel_values": torch.randn(shape), "image_grid_thw": torch.tensor([[1, GRID, GRID]] * BATCH)}


def _inputs() -> Mapping[str, Callable[[], dict[str, torch.Tensor]]]:
    places = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(8), indexing="ij"), -1).reshape(1, -1, 2)
    return {
        "cohere_compass": lambda: _grid("cohere_compass", 6),
        "granite4_vision": lambda: {
            "pixel_values": torch.randn(BATCH, 2, 3, GRID * 14, GRID * 14),
            "image_sizes": torch.tensor([[GRID * 14, GRID * 14]] * BATCH),
        },
        "hunyuan_vl": lambda: _grid("hunyuan_vl", 3),
        "minimax_m3_vl": lambda: _grid("minimax_m3_vl", 6),
        "step3p7": lambda: {
            "pixel_values": torch.randn(BATCH, 3, GRID * 14, GRID * 14),
            "num_local_patches": torch.zeros(BATCH, dtype=torch.long),
        },
        "exaone4_5": lambda: _grid("exaone4_5", 6),
        "gemma4_unified": lambda: {
            "pixel_values": torch.randn(BATCH, 128, 768),
            "image_position_ids": places.repeat(BATCH, 1, 1),
        },
        "kimi_k25": lambda: _grid("kimi_k25", 3),
        "minicpmv4_6": lambda: {
            "pixel_values": torch.randn(1, 3, 16, BATCH * GRID**2 * 16),
            "target_sizes": torch.tensor([[GRID, GRID]] * BATCH, dtype=torch.int32),
        },
        "muse_glimmer": lambda: _grid("muse_glimmer", 6),
        "qwen3_asr": lambda: {
            "input_features": torch.randn(BATCH, 32, 800),
            "input_features_mask": torch.ones(BATCH, 800, dtype=torch.long),
        },
    }


def batch(name: str, *, sees: bool = True) -> dict[str, torch.Tensor]:
    """Return sequences with an image each, or without one."""
    tokens = torch.randint(3, IMAGE_TOKEN, (BATCH, SEQUENCE))
    kinds = torch.zeros_like(tokens)
    images: dict[str, torch.Tensor] = {}
    if sees:
        kinds[:, 1 : 1 + TOWER_IMAGES[name][1] + ENDS.get(name, 0)] = 1
        tokens[kinds == 1] = IMAGE_TOKEN
        images = _inputs()[name]()
    typed = {} if name in UNTYPED else {"mm_token_type_ids": kinds}
    return {"input_ids": tokens, "labels": tokens, **typed, **images}


def built(name: str, attention: str) -> Any:
    """Return the model, in training."""
    kind = AutoModelForSeq2SeqLM if name == "qwen3_asr" else AutoModelForImageTextToText
    config = CONFIG_MAPPING[name].from_dict(deepcopy(dict(TOWER_MODELS[name])))
    return kind.from_config(config, attn_implementation=attention).float().train()


def counted(name: str) -> int:
    """Return the operations that images add to a forward pass, by torch's counter."""
    model, counts = built(name, "eager"), []
    for sees in (True, False):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(**batch(name, sees=sees))
        counts.append(counter.get_total_flops())
    return int(counts[0] - counts[1])


def computed(layers: ModelLayers, patches: int) -> float:
    """Return the same by our formulas."""
    plans = [
        Plan(sequence_length=SEQUENCE, micro_batch=BATCH, micro_batches=1, images=images, patches=patches)
        for images in (BATCH, 0)
    ]
    with_images, without = (float(pipeline_work(layers, plan, Trained())[0].forward) for plan in plans)
    return with_images - without


def peak(name: str, lora: bool, checkpointing: bool) -> float:
    """Return the peak of a step in MiB, by torch's MemTracker."""
    model = base = built(name, "sdpa")
    if lora:
        targets = rf".*language_model.*\.({'|'.join(TARGETS)})"
        model = get_peft_model(model.to(torch.bfloat16), LoraConfig(r=8, target_modules=targets))
    if checkpointing and lora:
        function = get_custom_gradient_checkpointing_func(partial(checkpoint, use_reentrant=True))
        base._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
        base.enable_input_require_grads()
    elif checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    make_optimizer_states(optimizer, trained)
    inputs = batch(name)
    with Tracker(model, optimizer) as tracker:
        step(model, optimizer, inputs, 2)
    return tracker.peak_mib


def formula(layers: ModelLayers, patches: int, lora: bool, checkpointing: bool) -> float:
    """Return the same by our formulas."""
    memory = TRAITS["llamafactory-ddp"].memory
    if memory is None:
        raise RuntimeError("DDP is not modelled")
    plan = Plan(
        sequence_length=SEQUENCE,
        micro_batch=BATCH,
        micro_batches=2,
        recompute="full" if checkpointing else "none",
        images=BATCH,
        patches=patches,
    )
    trained = Trained(tower=False, merger=False, deep_stack=False) if lora else Trained()
    tuning = Tuning(trained=trained, method="lora" if lora else "full", lora_targets="all")
    return float(data_parallel_memory(layers, plan, memory, tuning).peak - STATIC_BYTES) / MIB


def main() -> None:
    """Print lines for each type."""
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*", metavar="TYPE", help=f"default: all of {', '.join(TOWER_MODELS)}")
    for name in parser.parse_args().types or TOWER_MODELS:
        layers, patches = model_layers(parse_model(TOWER_MODELS[name])), TOWER_IMAGES[name][0]
        torchs, ours = counted(name), computed(layers, patches)
        print(f"{name:16} {'operations':28} {torchs:14,} {ours:14,.0f} {ours / torchs - 1:+7.2%}")
        for lora in (False, True):
            for checkpointing in (True, False):
                torchs_mib, ours_mib = peak(name, lora, checkpointing), formula(layers, patches, lora, checkpointing)
                case = f"{'LoRA' if lora else 'full'}, {'checkpoints' if checkpointing else 'no checkpoints'}, MiB"
                print(
                    f"{name:16} {case:28} {torchs_mib:14.1f} {ours_mib:14.1f} {ours_mib / torchs_mib - 1:+7.2%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
