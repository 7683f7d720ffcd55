"""Test of mcore-bridge's image features under tensor parallelism on CPU ranks of torchrun.

    bridge_gradients.py TP SEQUENCE FAMILY

The real functions run: the tower and its split (model/mm_gpts), the embedding (mm_gpt_model.py), the deep-stack
addition, and Megatron-Core's reduction of gradients over tensor parallel ranks. The layers between them are left out:
they need Transformer Engine, in whose place are empty classes. Rank 0 prints the gradient norm by part.
"""

import json
import sys
import types
from pathlib import Path

import megatron_on_cpu
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))
import swift_without_gpu

HIDDEN, TOKENS, IMAGE = 32, 24, 7
VISION = {"depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": HIDDEN}
PARTS = {"deepstack": "deep_stack", "merger": "projector"}


def main(tensor, sequence, family):
    megatron_on_cpu.patch()
    swift_without_gpu.install()
    from mcore_bridge.model import mm_gpt_model
    from mcore_bridge.model.mm_gpts import qwen3_vl
    from megatron.core import mpu
    from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads
    from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.distributed.init_process_group("gloo")
    mpu.initialize_model_parallel(tensor_model_parallel_size=tensor)
    model_parallel_cuda_manual_seed(0)
    sizes = {"num_layers": 1, "hidden_size": HIDDEN, "num_attention_heads": 2, "hidden_dropout": 0.0}
    plan = {"tensor_model_parallel_size": tensor, "sequence_parallel": sequence}
    config = TransformerConfig(**sizes, **plan, use_cpu_initialization=True)
    torch.manual_seed(0)
    embedding = LanguageModelEmbedding(config, 16, TOKENS, position_embedding_type="rope")
    visual = make_visual(config, family, qwen3_vl.Qwen3VL_Vit)
    ids, inputs = make_inputs(visual)
    mm = types.SimpleNamespace(visual=visual, config=config)
    with mm_gpt_model.MultimodalGPTModel._patch_word_embeddings(mm, inputs):
        hidden = embedding(ids, None)
    deep, mask = inputs["deepstack_visual_embeds"], inputs["visual_pos_masks"]
    for features in deep:
        hidden = qwen3_vl.Qwen3VLTransformerBlock._deepstack_process(None, hidden.clone(), mask, features)
    torch.manual_seed(1)
    observed = torch.randn(TOKENS, 1, HIDDEN)
    if sequence and tensor > 1:
        observed = observed.chunk(tensor)[mpu.get_tensor_model_parallel_rank()]
    (hidden * observed).sum().backward()
    for parameter in visual.parameters():
        parameter.main_grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    visual.ddp_config = types.SimpleNamespace(use_megatron_fsdp=False)
    _allreduce_non_tensor_model_parallel_grads([visual], config)
    if torch.distributed.get_rank() == 0:
        print(json.dumps(norms(visual)))


def make_visual(config, family, cls):
    from transformers import Qwen3VLConfig

    sizes = {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64,
             "deepstack_visual_indexes": [1]}  # fmt: skip
    hf_config = Qwen3VLConfig(vision_config={**VISION, **sizes}, image_token_id=IMAGE, video_token_id=8)
    for name, value in {
        "hf_config": hf_config,
        "hf_model_type": family,
        "language_model_only": False,
        "vit_attn_impl": None,
        "attention_backend": types.SimpleNamespace(name="unfused"),
    }.items():
        setattr(config, name, value)
    return cls(config)


def make_inputs(visual):
    """Return token ids with two images of four merged tokens each, in both halves of the sequence; and the inputs."""
    ids = torch.arange(TOKENS).remainder(6).unsqueeze(0)
    ids[0, 4:8] = ids[0, 14:18] = IMAGE
    grid = torch.tensor([[1, 4, 4], [1, 4, 4]])
    pixels = torch.randn(32, 3 * 2 * 4 * 4)
    return ids, {"input_ids": ids, "pixel_values": pixels, "image_grid_thw": grid}


def norms(visual):
    squares = {}
    for name, parameter in visual.named_parameters():
        part = next((part for piece, part in PARTS.items() if piece in name), "tower")
        squares[part] = squares.get(part, 0.0) + parameter.main_grad.double().square().sum().item()
    return {part: square**0.5 for part, square in squares.items()}


main(int(sys.argv[1]), sys.argv[2] == "True", sys.argv[3])
