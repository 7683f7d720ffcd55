"""The shape of a model for planning, read from a Hugging Face config.json.

An unknown architecture is refused, with the missing key. Nothing is guessed from a similar one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.job.problems import Problem, ProblemsError

FIELD = "model.hf_config"
MOST_LAYERS = 512
"""Limit on the layers: planning enumerates by layer. The deepest preset has 126."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2 and later)."""

    q_lora: int
    """Rank of the query's down-projection; 0 if the query is projected directly."""
    kv_lora: int
    nope_dim: int
    """Width of a query or key head without its rotary part."""
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionShape:
    """A vision tower of the Qwen VL families with its mergers."""

    depth: int
    hidden: int
    ffn: int
    heads: int
    channels: int
    patch: int
    """Pixels along an edge of a patch."""
    temporal_patch: int
    """Frames of a patch; a still image is repeated to fill them."""
    merge: int
    """Patches along an edge that become one language token."""
    out: int
    """Output width, for the language model."""
    positions: int
    """Learned positions; 0 if the tower uses only rotary positions."""
    deep_stack: int
    """Mergers that feed the first decoder layers, besides the main one."""
    gated: bool
    """SwiGLU and RMSNorm (Qwen2.5-VL) instead of GELU and LayerNorm."""
    patch_bias: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A decoder, dense or mixture of experts, with an optional vision tower. Widths are in elements."""

    model_type: str
    """Hugging Face's name of the architecture; empty if only plain keys were given."""
    hidden: int
    ffn: int
    """Width of a dense layer's FFN."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    """Whether the output layer shares the embedding's weight."""
    attention_bias: bool
    """Biases on the query, key and value projections."""
    output_bias: bool
    """Bias on the attention's output projection."""
    qk_norm: bool
    """A norm over every query and key head."""
    gated: bool
    """Three FFN matrices (SwiGLU) instead of two."""
    experts: int
    """Routed experts per layer; 0 for a dense model."""
    top_k: int
    expert_ffn: int
    shared_ffn: int
    """Width of all shared experts together; 0 if there is none."""
    shared_gate: bool
    """Whether the shared expert has its own gate (Qwen2-MoE)."""
    router_bias: bool
    """A bias per expert for load balancing (DeepSeek-V3)."""
    expert_bias: bool
    """Biases on the experts' projections (gpt-oss)."""
    clamped: bool
    """Whether the experts' activation clips large inputs (gpt-oss)."""
    dense_layers: int
    """Leading layers with a dense FFN in a mixture-of-experts model."""
    mla: Mla | None
    window: int
    """Window of layers with sliding attention, in tokens."""
    windowed: float
    """Share of layers with sliding attention."""
    vision: VisionShape | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Family:
    """Facts of a model_type that config.json does not contain."""

    qkv_bias: bool = False
    """Whether there is always a bias, whatever attention_bias says."""
    output_bias: bool = True
    """Whether attention_bias applies to the output projection."""
    qk_norm: bool = False
    shared_gate: bool = False
    router_bias: bool = False


# By the modeling files of transformers: src/transformers/models/<model_type>/modeling_<model_type>.py
_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(),
    "mistral": _Family(output_bias=False),
    "mixtral": _Family(output_bias=False),
    "qwen2": _Family(qkv_bias=True, output_bias=False),
    "qwen2_moe": _Family(qkv_bias=True, output_bias=False, shared_gate=True),
    "qwen2_vl": _Family(qkv_bias=True, output_bias=False),
    "qwen2_5_vl": _Family(qkv_bias=True, output_bias=False),
    "qwen3": _Family(qk_norm=True),
    "qwen3_moe": _Family(qk_norm=True),
    "qwen3_vl": _Family(qk_norm=True),
    "qwen3_vl_moe": _Family(qk_norm=True),
    "deepseek_v2": _Family(),
    "deepseek_v3": _Family(router_bias=True),
    "glm4_moe": _Family(output_bias=False, router_bias=True),
}
_VISION_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")


def parse_model(hf_config: Mapping[str, Any]) -> ModelShape:
    """Return the shape in a config.json, with nested or flat text keys, or with the plain keys alone.

    Raises ProblemsError: missing_model_key, bad_model_key, unsupported_model_type, unsupported_model_key.
    """
    text = hf_config.get("text_config", hf_config)
    if not isinstance(text, Mapping):
        raise _refuse("bad_model_key", key="text_config", value=text)
    model_type = str(hf_config.get("model_type") or text.get("model_type") or "")
    family = _family(model_type)
    hidden, heads = _size(text, "hidden_size"), _size(text, "num_attention_heads")
    experts = _size(text, "num_experts", "num_local_experts", "n_routed_experts", default=0)
    ffn = _size(text, "intermediate_size")
    head_dim = _size(text, "head_dim", default=hidden // heads)
    if not head_dim:
        raise _refuse("bad_model_key", key="num_attention_heads", value=heads)
    biased = bool(text.get("attention_bias", False))
    _refuse_mixed_layers(text, experts)
    return ModelShape(
        model_type=model_type,
        hidden=hidden,
        ffn=ffn,
        layers=_size(text, "num_hidden_layers", largest=MOST_LAYERS),
        heads=heads,
        kv_heads=_size(text, "num_key_value_heads", default=heads),
        head_dim=head_dim,
        vocab=_size(text, "vocab_size"),
        tied=bool(hf_config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        attention_bias=biased or family.qkv_bias,
        output_bias=bool(text.get("o_proj_bias", biased and family.output_bias)),
        qk_norm=bool(text.get("qk_norm", text.get("use_qk_norm", family.qk_norm))),
        gated=bool(text.get("mlp_gated", text.get("hidden_act", "silu") in ("silu", "swish"))),
        experts=experts,
        top_k=_size(text, "num_experts_per_tok") if experts else 0,
        expert_ffn=_size(text, "moe_intermediate_size", default=ffn) if experts else 0,
        shared_ffn=_shared_ffn(text) if experts else 0,
        shared_gate=family.shared_gate,
        router_bias=bool(experts) and family.router_bias,
        expert_bias=bool(experts) and bool(text.get("mlp_bias", False)),
        clamped=bool(experts) and text.get("activation_limit") is not None,
        dense_layers=_size(text, "first_k_dense_replace", default=0) if experts else 0,
        mla=_mla(text),
        **_windows(text),
        vision=_vision(hf_config, hidden),
    )


def _family(model_type: str) -> _Family:
    if not model_type:
        return _Family()
    family = _FAMILIES.get(model_type.removesuffix("_text"))
    if family is None:
        raise _refuse("unsupported_model_type", model_type=model_type, supported=sorted(_FAMILIES))
    return family


def _refuse(code: str, **values: object) -> ProblemsError:
    return ProblemsError([Problem(code=code, field=FIELD, values=values)])


def _size(config: Mapping[str, Any], *keys: str, default: int | None = None, largest: int = 10**9) -> int:
    """Return the first of `keys` that is present, as a positive whole number. Null counts as absent.

    A value that is absent by default (no experts, no shared expert) may also be 0.
    """
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        smallest = 0 if default == 0 else 1
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
            raise _refuse("bad_model_key", key=key, value=value)
        return value
    if default is None:
        raise _refuse("missing_model_key", key=keys[0])
    return default


def _refuse_mixed_layers(text: Mapping[str, Any], experts: int) -> None:
    """Refuse dense layers that are not the first ones: they would silently count as expert layers."""
    plain = {"decoder_sparse_step": 1, "moe_layer_freq": 1, "mlp_only_layers": []}
    for key, usual in plain.items():
        if experts and text.get(key, usual) not in (usual, None):
            raise _refuse("unsupported_model_key", key=key, value=text[key])


def _windows(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the window and share of sliding attention, if the list of layer types has it."""
    listed = text.get("layer_types")
    types = listed if isinstance(listed, list) else []
    sliding = types.count("sliding_attention")
    window = _size(text, "sliding_window", default=0) if sliding else 0
    return {"window": window, "windowed": sliding / len(types) if window else 0.0}


def _shared_ffn(text: Mapping[str, Any]) -> int:
    width = _size(text, "shared_expert_intermediate_size", default=0)
    return width or _size(text, "n_shared_experts", default=0) * _size(text, "moe_intermediate_size", default=0)


def _mla(text: Mapping[str, Any]) -> Mla | None:
    if not text.get("kv_lora_rank"):
        return None
    if text.get("attention_bias"):
        raise _refuse("unsupported_model_key", key="attention_bias", value=True)
    return Mla(
        q_lora=_size(text, "q_lora_rank", default=0),
        kv_lora=_size(text, "kv_lora_rank"),
        nope_dim=_size(text, "qk_nope_head_dim"),
        rope_dim=_size(text, "qk_rope_head_dim"),
        value_dim=_size(text, "v_head_dim"),
    )


def _vision(hf_config: Mapping[str, Any], text_hidden: int) -> VisionShape | None:
    vision = hf_config.get("vision_config")
    if not vision:
        return None
    if not isinstance(vision, Mapping):
        raise _refuse("bad_model_key", key="vision_config", value=vision)
    kind = str(hf_config.get("model_type") or vision.get("model_type") or "")
    if kind not in _VISION_FAMILIES:
        raise _refuse("unsupported_model_type", model_type=kind or "vision_config", supported=list(_VISION_FAMILIES))
    if kind == "qwen2_vl":
        # In Qwen2-VL alone, embed_dim is the tower's width and hidden_size the output width.
        hidden, out = _size(vision, "embed_dim"), _size(vision, "hidden_size")
        ffn = hidden * _size(vision, "mlp_ratio")
    else:
        hidden, ffn = _size(vision, "hidden_size"), _size(vision, "intermediate_size")
        out = _size(vision, "out_hidden_size", default=text_hidden)
    heads = _size(vision, "num_heads")
    if heads > hidden:
        raise _refuse("bad_model_key", key="num_heads", value=heads)
    third = kind.startswith("qwen3")
    return VisionShape(
        depth=_size(vision, "depth", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        channels=_size(vision, "in_channels", "in_chans", default=3),
        patch=_size(vision, "patch_size"),
        temporal_patch=_size(vision, "temporal_patch_size", default=2),
        merge=_size(vision, "spatial_merge_size", default=2),
        out=out,
        positions=_size(vision, "num_position_embeddings") if third else 0,
        deep_stack=len(vision.get("deepstack_visual_indexes") or ()) if third else 0,
        gated=kind == "qwen2_5_vl",
        patch_bias=third,
    )
