"""Bytes per token that Hugging Face modules save for backward, counted on real tensors, beside our formula.

    .venv-node/bin/python -m benchmarks.saved_tensors

Needs torch and transformers (the node environment). The bytes of a layer are the difference between a model of two
layers and one of one layer.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.model.model_layers import model_layers
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.presets import resolve_model

TOKENS = 256
SMALL = {
    "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 128,
}  # fmt: skip
DECODERS = (
    ("llama", LlamaConfig, LlamaForCausalLM),
    ("qwen3", Qwen3Config, Qwen3ForCausalLM),
    ("gemma2", Gemma2Config, Gemma2ForCausalLM),
    ("olmo2", Olmo2Config, Olmo2ForCausalLM),
)
GRID = torch.tensor([[1, 16, 16]])


def main() -> None:
    """Print one line for each module."""
    print(f"{'module':34} {'torch':>9} {'formula':>9} {'error':>7}")
    for name, config, model in DECODERS:
        layer = model_layers(parse_model({"model_type": name, **SMALL, "num_hidden_layers": 1})).kinds[0]
        for autocast in (False, True):
            saved = _decoder(config, model, 2, autocast) - _decoder(config, model, 1, autocast)
            form = EagerForm(residual=4, casts=True) if autocast else EagerForm()
            _line(f"{name} decoder layer, {'autocast' if autocast else 'bf16'}", saved, eager_bytes(layer, form))
    for preset, tower in (("qwen3-vl-8b", _qwen3_vl), ("qwen2.5-vl-7b", _qwen2_5_vl)):
        vision = model_layers(resolve_model(Model(preset=preset))).vision
        if vision:
            _line(f"{preset} vision block, bf16", tower(2) - tower(1), eager_bytes(vision.blocks[0].kind, EagerForm()))


def _line(name: str, measured: float, formula: float) -> None:
    print(f"{name:34} {measured:9.0f} {formula:9.0f} {formula / measured - 1:+7.2%}")


def _decoder(config: Any, model: Any, layers: int, autocast: bool) -> float:
    settings = config(**SMALL, num_hidden_layers=layers)
    settings._attn_implementation = "sdpa"
    decoder = model(settings).to(torch.float32 if autocast else torch.bfloat16).train()
    tokens = torch.randint(0, SMALL["vocab_size"], (1, TOKENS))
    context = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext()
    with context:
        return _saved_bytes(decoder, lambda: decoder.model(tokens, use_cache=False))


def _qwen3_vl(depth: int) -> float:
    config = Qwen3VLVisionConfig(depth=depth, hidden_size=1152, intermediate_size=4304, deepstack_visual_indexes=[])
    return _tower(Qwen3VLVisionModel, config, 3 * 2 * 16 * 16)


def _qwen2_5_vl(depth: int) -> float:
    config = Qwen2_5_VLVisionConfig(depth=depth, hidden_size=1280, intermediate_size=3420, fullatt_block_indexes=[0, 1])
    return _tower(Qwen2_5_VisionTransformerPretrainedModel, config, 3 * 2 * 14 * 14)


def _tower(model: Any, config: Any, pixels: int) -> float:
    config._attn_implementation = "sdpa"
    tower = model(config).to(torch.bfloat16).train()
    patches = torch.randn(TOKENS, pixels, dtype=torch.bfloat16)
    return _saved_bytes(tower, lambda: tower(patches, grid_thw=GRID))


def _saved_bytes(model: torch.nn.Module, forward: Callable[[], object]) -> float:
    """Return the bytes per token of all storages that autograd saves, without weights and their casts."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {tuple(p.shape) for p in model.parameters()} | {tuple(p.shape)[::-1] for p in model.parameters()}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
    sizes = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in kept
        if tensor.untyped_storage().data_ptr() not in weights and tuple(tensor.shape) not in shapes
    }
    del result
    return sum(sizes.values()) / TOKENS


if __name__ == "__main__":
    main()
