"""Parameters counted on real modules: of Megatron-Core on each rank, and of Hugging Face for each preset.

    .venv-node/bin/python -m benchmarks.real_modules megatron < cases.json
    .venv-node/bin/python -m benchmarks.real_modules gated-delta-net < cases.json
    .venv-node/bin/python -m benchmarks.real_modules hugging-face

Needs the node environment (torch, megatron-core, transformers). Nothing is allocated: modules are on the meta device,
ranks in torch's fake process group. A case is {model, tensor, pipeline, virtual_pipeline, expert, expert_tensor,
world}; `model` is a preset or config.json keys. The answer is [[dense, expert], ...] for the first rank of each stage.
A case of `gated-delta-net` is {model, tensor}, and its answer is the parameters of one mixer on one rank.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch

from backend.job.model import FullAttention, ModelShape, parse_model
from backend.job.model.shape import GatedDeltaNet
from backend.job.presets import models


def megatron(cases: list[Mapping[str, Any]]) -> list[list[list[int]]]:
    """Return [dense, expert] parameters of the first rank of every stage, for each case."""
    from megatron.core.transformer import torch_norm

    # The default norm refuses sequence parallel; its weights are the same.
    torch_norm.WrappedTorchNorm.__new__ = staticmethod(
        lambda _cls, config, hidden_size, eps=1e-5, *_a, **_k: torch.nn.RMSNorm(hidden_size, eps=eps)
    )
    # A tied weight of two stages is moved to the GPU and made equal there.
    torch.Tensor.cuda = lambda tensor, *_a, **_k: tensor
    return [[_stage(case, stage) for stage in range(case["pipeline"])] for case in cases]


def _shape(model: str | Mapping[str, Any]) -> ModelShape:
    return parse_model(models()[model].hf_config if isinstance(model, str) else model)


def full_attention(shape: ModelShape) -> FullAttention:
    """Return the attention of the first layer. Raises TypeError if it is of another kind."""
    attention = shape.kinds[0].attention
    if not isinstance(attention, FullAttention):
        raise TypeError("not a layer with full attention")
    return attention


def _stage(case: Mapping[str, Any], stage: int) -> list[int]:
    import torch.distributed as distributed
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world, virtual = case["world"], case["virtual_pipeline"]
    if distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()
    rank = stage * (world // case["pipeline"])
    distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    sizes = {
        "tensor_model_parallel_size": case["tensor"],
        "pipeline_model_parallel_size": case["pipeline"],
        "virtual_pipeline_model_parallel_size": virtual if virtual > 1 else None,
        "expert_model_parallel_size": case["expert"],
        "expert_tensor_parallel_size": case["expert_tensor"],
    }
    parallel_state.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
    dense = expert = 0
    for chunk in range(virtual):
        for parameter in _chunk(_shape(case["model"]), sizes, chunk if virtual > 1 else None).parameters():
            # Megatron marks parameters that data parallelism must not reduce like dense weights: experts.
            if getattr(parameter, "allreduce", True):
                dense += parameter.numel()
            else:
                expert += parameter.numel()
    return [dense, expert]


def _chunk(shape: ModelShape, sizes: Mapping[str, int | None], chunk: int | None) -> torch.nn.Module:
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    config, attention = _config(shape, sizes), full_attention(shape)
    virtual = {} if chunk is None else {"vp_stage": chunk}
    if shape.experts:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", **virtual)
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=attention.qk_norm != "none", normalization="RMSNorm")
    with torch.device("meta"):
        return GPTModel(
            config,
            spec,
            shape.vocab,
            4096,
            position_embedding_type="rope",
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, **virtual),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, **virtual),
            share_embeddings_and_output_weights=shape.tied,
            **virtual,
        )


def _config(shape: ModelShape, sizes: Mapping[str, int | None]) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts: dict[str, Any] = {}
    attention = full_attention(shape)
    if shape.experts:
        experts = {
            "num_moe_experts": shape.experts,
            "moe_router_topk": shape.top_k,
            "moe_ffn_hidden_size": shape.expert_ffn,
            "moe_shared_expert_intermediate_size": (shape.moe.shared_width if shape.moe else 0) or None,
            # The other dispatchers need a CUDA stream.
            "moe_token_dispatcher_type": "allgather",
        }
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn or shape.expert_ffn,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        qk_layernorm=attention.qk_norm != "none",
        add_qkv_bias=attention.bias,
        add_bias_linear=False,
        gated_linear_unit=shape.kinds[0].ffn.gated,
        activation_func=torch.nn.functional.silu,
        normalization="RMSNorm",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        sequence_parallel=(sizes["tensor_model_parallel_size"] or 1) > 1,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        use_cpu_initialization=True,
        perform_initialization=False,
        **sizes,
        **experts,
    )


def gated_delta_nets(cases: list[Mapping[str, Any]]) -> list[int]:
    """Return the parameters of Megatron-Core's gated delta net on one rank, for each case."""
    from megatron.core.ssm import gated_delta_net

    # Only the forward pass needs flash-linear-attention, which needs a GPU.
    gated_delta_net.HAVE_FLA = True
    torch.cuda.current_device = lambda: "meta"
    return [_gated_delta_net(case) for case in cases]


def _gated_delta_net(case: Mapping[str, Any]) -> int:
    import torch.distributed as distributed
    from megatron.core import parallel_state
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet as Module
    from megatron.core.ssm.gated_delta_net import GatedDeltaNetSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    shape, tensor = _shape(case["model"]), case["tensor"]
    net = next(kind.attention for kind in shape.kinds if isinstance(kind.attention, GatedDeltaNet))
    if distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()
    distributed.init_process_group("fake", rank=0, world_size=tensor, store=FakeStore())
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor, create_gloo_process_groups=False)
    config = TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        tensor_model_parallel_size=tensor,
        add_bias_linear=False,
        activation_func=torch.nn.functional.silu,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=True,
        perform_initialization=False,
        normalization="RMSNorm",
        experimental_attention_variant="gated_delta_net",
        linear_attention_freq=4,
        linear_conv_kernel_dim=net.convolution,
        linear_key_head_dim=net.key_dim,
        linear_value_head_dim=net.value_dim,
        linear_num_key_heads=net.key_heads,
        linear_num_value_heads=net.value_heads,
    )
    provider = LocalSpecProvider()
    modules = GatedDeltaNetSubmodules(
        in_proj=provider.column_parallel_linear(),
        out_norm=provider.layer_norm(rms_norm=True),
        out_proj=provider.row_parallel_linear(),
    )
    groups = ProcessGroupCollection.use_mpu_process_groups()
    with torch.device("meta"):
        module = Module(config, modules, layer_number=1, pg_collection=groups)
    return sum(parameter.numel() for parameter in module.parameters())


def hugging_face() -> dict[str, int]:
    """Return the parameters of every preset, built as its Hugging Face class. Router biases count as in checkpoints.

    Of an omni model it is the part `thinker`, which is all that LLaMA-Factory trains.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    counts = {}
    for key, preset in models().items():
        config = CONFIG_MAPPING[preset.hf_config["model_type"]].from_dict(dict(preset.hf_config))
        config = getattr(config, "thinker_config", config)
        kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
        with torch.device("meta"):
            model = kind.from_config(config)
        counts[key] = _count(model)
    return counts


def _count(model: torch.nn.Module) -> int:
    """Return the parameters of a model. Router biases count as in checkpoints."""
    biases = [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return sum(tensor.numel() for tensor in (*model.parameters(), *biases))


if __name__ == "__main__":
    counters = {"megatron": megatron, "gated-delta-net": gated_delta_nets}
    counter = counters.get(sys.argv[1])
    json.dump(counter(json.load(sys.stdin)) if counter else hugging_face(), sys.stdout, default=str)
