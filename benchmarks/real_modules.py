"""Parameters counted on real modules: of Megatron-Core on each rank, and of Hugging Face for each preset.

    .venv-node/bin/python -m benchmarks.real_modules megatron < cases.json
    .venv-node/bin/python -m benchmarks.real_modules hugging-face
    .venv-node/bin/python -m benchmarks.real_modules adapters
    .venv-node/bin/python -m benchmarks.real_modules patches-need-gradients
    .venv-node/bin/newer-python -m benchmarks.real_modules hugging-face | patches-need-gradients

Needs the node environment (torch, megatron-core, transformers). Nothing is allocated: modules are on the meta device,
ranks in torch's fake process group. A case is {model, tensor, pipeline, virtual_pipeline, expert, expert_tensor, mtp,
world}; `model` is a preset or config.json keys, `mtp` the number of layers for multi-token prediction. The answer is
[[dense, expert], ...] for the first rank of each stage; the first stage has the vision tower of the Hugging Face class,
as both bridges build it.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch

from backend.job.model import FullAttention, ModelShape, parse_model
from backend.job.model.linear_shape import GatedDeltaNet
from backend.job.model.newer import NEWER, NEWER_TOWERS
from backend.job.model.shape import Experts
from backend.job.model.vision import TOWERS
from backend.job.presets import models
from benchmarks.families import COMPLETED, built_parameters
from benchmarks.small_models import NEWER_MODELS, SMALL_MODELS


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


def _tower(model: str | Mapping[str, Any]) -> int:
    """Return the parameters of the vision tower, which Megatron engines take from transformers; 0 without one."""
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    keys = models()[model].hf_config if isinstance(model, str) else model
    if "vision_config" not in keys:
        return 0
    with torch.device("meta"):
        config = CONFIG_MAPPING[keys["model_type"]].from_dict(dict(keys))
        return sum(each.numel() for each in AutoModelForImageTextToText.from_config(config).model.visual.parameters())


def full_attention(shape: ModelShape) -> FullAttention:
    """Return the first full attention of the model. Raises TypeError if it has none."""
    for kind in shape.kinds:
        if isinstance(kind.attention, FullAttention):
            return kind.attention
    raise TypeError("no layer has full attention")


def _gated_delta(shape: ModelShape) -> GatedDeltaNet | None:
    return next((kind.attention for kind in shape.kinds if isinstance(kind.attention, GatedDeltaNet)), None)


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
    dense, expert = (_tower(case["model"]) if stage == 0 else 0), 0
    for chunk in range(virtual):
        for parameter in _chunk(_shape(case["model"]), sizes, chunk if virtual > 1 else None, case["mtp"]).parameters():
            # Megatron marks parameters that data parallelism must not reduce like dense weights: experts.
            if getattr(parameter, "allreduce", True):
                dense += parameter.numel()
            else:
                expert += parameter.numel()
    return [dense, expert]


def _chunk(shape: ModelShape, sizes: Mapping[str, int | None], chunk: int | None, mtp: int) -> torch.nn.Module:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel

    config = _config(shape, sizes, mtp)
    virtual = {} if chunk is None else {"vp_stage": chunk}
    if config.experimental_attention_variant == "gated_delta_net":
        spec = _hybrid_block(config, chunk)
    elif shape.experts:
        spec = specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization="RMSNorm", **virtual
        )
    else:
        spec = specs.get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    if shape.is_sparse:
        _choose_keys(config, spec)
    is_built_of_te = config.experimental_attention_variant == "gated_delta_net"  # _hybrid_block replaces its modules
    predictors = specs.get_gpt_mtp_block_spec(config, spec, is_built_of_te, **virtual) if mtp else None
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
            mtp_block_spec=predictors,
            **virtual,
        )


def _hybrid_block(config: Any, chunk: int | None) -> Any:
    """Return Megatron-Core's block of layers with full attention and with a gated delta net, for this rank.

    Megatron-Core builds it only of Transformer Engine's modules (models/gpt/
    experimental_attention_variant_module_specs.py _get_backend_spec_provider), which need CUDA. Its own local modules
    take their places; the weight of the norm that Transformer Engine fuses into a projection is a parameter of it.
    """
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.ssm import gated_delta_net
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    class NormedLinear(ColumnParallelLinear):
        def __init__(self, input_size: int, *arguments: Any, **options: Any) -> None:
            super().__init__(input_size, *arguments, **options)
            self.layer_norm_weight = torch.nn.Parameter(torch.empty(input_size))

    class Provider(LocalSpecProvider):
        def fuse_layernorm_and_linear(self) -> bool:
            return True

        def column_parallel_layer_norm_linear(self) -> type:
            return NormedLinear

    variants.TESpecProvider = gpt_layer_specs.TESpecProvider = Provider
    # Only the forward pass needs flash-linear-attention, which needs a GPU.
    gated_delta_net.HAVE_FLA = True
    torch.cuda.current_device = lambda: "meta"
    return variants.get_transformer_block_with_experimental_attention_variant_spec(config, vp_stage=chunk)


def _choose_keys(config: Any, block: Any) -> None:
    """Give every layer of a block the attention over chosen keys, as mcore-bridge 1.6.5 model/register.py
    _replace_spec_dsa does: with separate norms of the low ranks. Here they are fused ones with the same weights."""
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
    from megatron.core.transformer import multi_latent_attention

    class Whole(torch.nn.Linear):
        def __init__(self, inputs: int, outputs: int, **_options: Any) -> None:
            super().__init__(inputs, outputs, bias=False)

    class Norm(torch.nn.RMSNorm):
        def __init__(self, hidden_size: int, **_options: Any) -> None:
            super().__init__(hidden_size)

    class LayerNorm(torch.nn.LayerNorm):
        def __init__(self, hidden_size: int, **_options: Any) -> None:
            super().__init__(hidden_size)

    class Provider(LocalSpecProvider):
        def linear(self) -> type:
            return Whole

        def column_parallel_layer_norm_linear(self) -> Any:
            return self.column_parallel_linear()

        def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
            return Norm if rms_norm else LayerNorm

    multi_latent_attention.TELinear = Whole
    for layer in block.layer_specs:
        attention = variants.get_dsa_module_spec_for_backend(config, Provider())
        attention.submodules.q_layernorm = attention.submodules.kv_layernorm = Norm
        layer.submodules.self_attention = attention


def _config(shape: ModelShape, sizes: Mapping[str, int | None], mtp: int) -> Any:
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    experts: dict[str, Any] = {}
    latent = _latent_attention(shape) if shape.mla else {}
    attention, net = None if shape.mla else full_attention(shape), _gated_delta(shape)
    if shape.experts:
        experts = {
            "num_moe_experts": shape.experts,
            "moe_router_topk": shape.top_k,
            "moe_ffn_hidden_size": shape.expert_ffn,
            "moe_shared_expert_intermediate_size": (shape.moe.shared_width if shape.moe else 0) or None,
            "moe_shared_expert_gate": bool(shape.moe and shape.moe.shared_gate),
            "moe_layer_freq": [int(isinstance(shape.kinds[index].ffn, Experts)) for index in shape.order],
            # The other dispatchers need a CUDA stream.
            "moe_token_dispatcher_type": "allgather",
        }
    own: dict[str, Any] = latent
    if attention:
        own = {
            "num_query_groups": attention.kv_heads,
            "kv_channels": attention.head_dim,
            "attention_output_gate": attention.gate == "query",
            "qk_layernorm": attention.qk_norm != "none",
            "add_qkv_bias": attention.bias,
        }
    return (MLATransformerConfig if latent else TransformerConfig)(
        num_layers=shape.layers,
        mtp_num_layers=mtp or None,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn or shape.expert_ffn,
        num_attention_heads=attention.heads if attention else shape.heads,
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
        **own,
        **(_linear_attention(shape, net) if net else {}),
    )


def _latent_attention(shape: ModelShape) -> dict[str, Any]:
    """Return the keys of latent attention, and of the indexer that chooses its keys."""
    mla = shape.mla
    if mla is None or mla.indexer is None:
        raise TypeError("no layer has latent attention with an indexer")
    return {
        "q_lora_rank": mla.q_lora,
        "kv_lora_rank": mla.kv_lora,
        "qk_head_dim": mla.nope_dim,
        "qk_pos_emb_head_dim": mla.rope_dim,
        "v_head_dim": mla.value_dim,
        "qk_layernorm": True,
        "rope_type": "rope",
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": mla.indexer.heads,
        "dsa_indexer_head_dim": mla.indexer.head_dim,
        "dsa_indexer_topk": mla.indexer.chosen,
    }


def _linear_attention(shape: ModelShape, net: GatedDeltaNet) -> dict[str, Any]:
    """Return the keys of the gated delta nets; the layers with full attention come in the order of the model."""
    order = [int(isinstance(shape.kinds[index].attention, GatedDeltaNet)) for index in shape.order]
    return {
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": order,
        "linear_conv_kernel_dim": net.convolution,
        "linear_key_head_dim": net.key_dim,
        "linear_value_head_dim": net.value_dim,
        "linear_num_key_heads": net.key_heads,
        "linear_num_value_heads": net.value_heads,
    }


def hugging_face() -> dict[str, int]:
    """Return the parameters of every preset, built as its Hugging Face class. Router biases count as in checkpoints.

    Of an omni model it is the part `thinker`, which is all that LLaMA-Factory trains.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    counts = {}
    for key, preset in models().items():
        if not _is_asked(preset.hf_config["model_type"]):
            continue
        config = CONFIG_MAPPING[preset.hf_config["model_type"]].from_dict(dict(preset.hf_config))
        config = getattr(config, "thinker_config", config)
        sees = hasattr(config, "vision_config")
        counts[key] = built_parameters(config, "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM")
    return counts


def adapters() -> dict[str, int]:
    """Return the parameters of LoRA adapters of rank 8 on every linear module of each small model but the output layer.

    Types that this transformers does not have are left out.

    LLaMA-Factory looks for `Linear` in the names of classes and for `lm_head` in those of modules (0.9.5
    model/model_utils/misc.py find_all_linear_modules).
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from benchmarks.language_part import language_model

    counts = {}
    for name, keys in {**SMALL_MODELS, **NEWER_MODELS}.items():
        if name not in CONFIG_MAPPING:
            continue
        with torch.device("meta"):
            model = language_model(CONFIG_MAPPING[name].from_dict(dict(keys)))
        counts[name] = sum(
            8 * sum(module.weight.shape)
            for path, module in model.named_modules()
            if is_linear(module) and "lm_head" not in path
        )
    return counts


def is_linear(module: torch.nn.Module) -> bool:
    """Return whether `all` gives a module an adapter. The names of all classes of Kimi Linear have the word, too, but
    peft adapts none of them."""
    return "Linear" in type(module).__name__ and isinstance(module, torch.nn.Linear)


def patches_need_gradients() -> list[str]:
    """Return the types of TOWERS whose tower has an embedding that transformers' enable_input_require_grads finds.

    Gemma 3n is left out, because its tower needs timm.
    """
    return [name for name in TOWERS if _is_asked(name) and name != "gemma3n" and _has_hooked_tower(name)]


def _is_asked(name: str) -> bool:
    """Return whether this transformers builds a type here: a later one builds only those that the node's lacks."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    newer = {*NEWER, *NEWER_TOWERS}
    is_later = any(each in CONFIG_MAPPING for each in newer)
    return name in CONFIG_MAPPING and (name in newer) == is_later


def _has_hooked_tower(name: str) -> bool:
    from transformers import AutoModelForImageTextToText, AutoModelForSeq2SeqLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    config = CONFIG_MAPPING[name](**COMPLETED.get(name, {}))
    config = getattr(config, "thinker_config", config)
    sees = config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    with torch.device("meta"):
        model = (AutoModelForImageTextToText if sees else AutoModelForSeq2SeqLM).from_config(config)
    model.enable_input_require_grads()
    hooked = [each for each, module in model.named_modules() if module._forward_hooks]
    # The activations of a second tower, for audio, are not counted.
    others = ("embed_tokens", "audio_tower.conv1", "audio_tower.conv2d1") if sees else ("embed_tokens",)
    return any(not each.endswith(others) for each in hooked)


if __name__ == "__main__":
    answers = {"hugging-face": hugging_face, "adapters": adapters, "patches-need-gradients": patches_need_gradients}
    answer = megatron(json.load(sys.stdin)) if sys.argv[1] == "megatron" else answers[sys.argv[1]]()
    json.dump(answer, sys.stdout, default=str)
