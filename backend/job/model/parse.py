"""The shape of a model, read from a Hugging Face config.json.

An unknown architecture is refused, with the missing key. Nothing is guessed from a similar one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.job.model.attention_shape import FullAttention, Mla, QkNorm
from backend.job.model.config import Config, part, refusal
from backend.job.model.defaults import defaults
from backend.job.model.families import DROPOUT_KEYS, FAMILIES, FP32_ROUTERS, UNREAD
from backend.job.model.family import FULL, INDEXED, LINEAR, SLIDING, Family, Flag
from backend.job.model.hybrids import ATTENTION, CONVOLUTION, HYBRID, MAMBA, MLP, MOE, convolution, nemotron_types
from backend.job.model.linear_shape import GatedDeltaNet
from backend.job.model.llama import CHUNKED
from backend.job.model.mllama import CROSS
from backend.job.model.operators import WEIGHTS
from backend.job.model.own_code import OWN_CODE, TEXT_OF, TEXT_OF_VERSION, WITH_LLM_CONFIG
from backend.job.model.shape import Experts, Ffn, LayerShape, Mixer, ModelShape
from backend.job.model.sparse import MOE_TYPES
from backend.job.model.vision import MOST_LAYERS, TOWERS, parse_vision

WITH_EXPERTS = ("sparse", *MOE_TYPES)
"""Types of FFN with experts, in `mlp_layer_types`."""


def parse_model(hf_config: Mapping[str, Any]) -> ModelShape:
    """Return the shape in a config.json, with nested or flat text keys, or with the plain keys alone.

    Raises ProblemsError: missing_model_key, bad_model_key, unsupported_model_type, unsupported_model_key.
    """
    thinker = part(hf_config, "thinker_config")
    if thinker:
        # LLaMA-Factory trains this part of an omni model only (model/loader.py).
        inner = parse_model({**thinker, "model_type": f"{hf_config.get('model_type')}_thinker"})
        return replace(inner, model_type=str(hf_config.get("model_type")))
    values = part(hf_config, "text_config") or part(hf_config, "llm_config") or hf_config
    model_type = str(hf_config.get("model_type") or values.get("model_type") or "")
    if model_type in WITH_LLM_CONFIG and values is hf_config:
        raise refusal("missing_model_key", key="llm_config")
    if model_type not in TOWERS:
        _family(model_type)
    text_type = _text_type(values, model_type)
    family = _family(text_type)
    values = {family.aliases.get(key, key): value for key, value in values.items()} if family.aliases else values
    alone = defaults().get(text_type) if values is hf_config else None
    text = Config(values, alone or defaults().get(_name(text_type), family.defaults), family.keys)
    for key in UNREAD:
        if text.flag(key):
            raise refusal("unsupported_model_key", key=key, value=True)
    for key, known in family.only.items():
        if text.get(key, known) != known:
            raise refusal("unsupported_model_key", key=key, value=text.get(key))
    listed = nemotron_types(text) if _name(text_type) == "nemotron_h" else None
    layers = len(listed) if listed else text.size("num_hidden_layers", largest=MOST_LAYERS)
    hidden = text.size("hidden_size")
    kinds, order = _kinds(text, family, hidden, listed or _layer_types(text, family, layers))
    tied = hf_config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    return ModelShape(
        model_type=model_type,
        hidden=hidden,
        vocab=text.size("vocab_size"),
        tied=bool(tied) and not family.never_tied,
        kinds=kinds,
        order=order,
        positions=text.size(family.positions) + family.extra_positions if family.positions else 0,
        head_bias=family.head_bias,
        softcap=bool(text.get("final_logit_softcapping")),
        only_counted=family.only_counted,
        fp32_residual=family.fp32_residual,
        bare_embedding_norm=family.bare_embedding_norm,
        other=_other(text, family, hidden, layers),
        own_mtp=family.own_mtp(text) if family.own_mtp else 0,
        runs_mtp=family.runs_mtp,
        vision=parse_vision(hf_config, hidden),
    )


def _text_type(values: Mapping[str, Any], model_type: str) -> str:
    """Return the type whose family the language model has: its own, unless only the whole model's is known."""
    own = str(values.get("model_type") or "")
    if model_type in TEXT_OF_VERSION:
        version = values.get("version")
        if not isinstance(version, int | float) or version not in TEXT_OF_VERSION[model_type]:
            raise refusal("unsupported_model_key", key="version", value=version)
        return TEXT_OF_VERSION[model_type][version]
    if model_type in TEXT_OF:
        return TEXT_OF[model_type]
    if model_type in OWN_CODE or (_name(own) not in FAMILIES and (not own or model_type in FAMILIES)):
        return model_type
    return own


def _name(model_type: str) -> str:
    return model_type.removesuffix("_text")


def _family(model_type: str) -> Family:
    if not model_type:
        return Family()
    name = _name(model_type)
    if name not in FAMILIES:
        raise refusal("unsupported_model_type", model_type=model_type, supported=sorted(FAMILIES))
    return replace(FAMILIES[name], fp32_router=name in FP32_ROUTERS)


def _layer_types(text: Config, family: Family, layers: int) -> list[str]:
    """Return the type of every layer."""
    types = text.get("layer_types") or family.layer_types(text, layers)
    if not isinstance(types, list) or len(types) < layers or not all(isinstance(name, str) for name in types):
        raise refusal("bad_model_key", key="layer_types", value=types)
    return types[:layers]


def _other(text: Config, family: Family, hidden: int, layers: int) -> int:
    """Return the weights beside the layers."""
    other = family.other(text, hidden, layers) if family.other else 0
    return other + WEIGHTS[family.norm] * hidden * family.embedding_norm


def _kinds(
    text: Config, family: Family, hidden: int, types: list[str]
) -> tuple[tuple[LayerShape, ...], tuple[int, ...]]:
    """Return the kinds of layers, and the index of the kind of every layer."""
    kinds: dict[LayerShape, int] = {}
    order = []
    mixers = {name: _mixer(name, text, family, hidden) for name in dict.fromkeys(types)}
    ffns = _ffns(text, family, hidden, len(types))
    dropout = any(text.get(key) for key in DROPOUT_KEYS)
    for index, (name, ffn) in enumerate(zip(types, ffns, strict=True)):
        kind = LayerShape(
            attention=mixers[name],
            ffn=_ffn_of_type(name, ffn, text, family, hidden, alone=MLP in types or MOE in types),
            beside=family.state_space(text, hidden) if name == HYBRID and family.state_space else None,
            norms=family.norms,
            norm=family.norm,
            fp32_norms=family.fp32_norms,
            other=family.activation_parameters,
            dropout=dropout,
            modules=tuple(family.modules.items()),
        )
        if family.refine:
            kind = family.refine(text, kind, index, len(types))
        order.append(kinds.setdefault(kind, len(kinds)))
    return tuple(kinds), tuple(order)


def _mixer(name: str, text: Config, family: Family, hidden: int) -> Mixer | None:
    """Return what mixes tokens in layers of a type; None for a layer that is only an FFN."""
    own = family.mixer(text, name) if family.mixer else None
    if own:
        return own
    if name == LINEAR:
        return family.delta_net(text) if family.delta_net else _delta_net(text, family)
    if text.get("kv_lora_rank"):
        return _mla(text, hidden if family.value_heads_divide_hidden else 0)
    if name == MAMBA and family.state_space:
        return family.state_space(text, hidden)
    if name == CONVOLUTION:
        return convolution(text)
    if name in (MLP, MOE):
        return None
    if name == CROSS:
        return replace(_full_attention(text, family, hidden, 0), cross=True, qk_norm="heads")
    if name not in (FULL, INDEXED, SLIDING, CHUNKED, ATTENTION, HYBRID):
        raise refusal("unsupported_model_key", key="layer_types", value=name)
    return _full_attention(text, family, hidden, _window(name, text))


def _window(name: str, text: Config) -> int:
    """Return the tokens that a token sees; 0 for all. In a chunk it sees half of the chunk on average."""
    if name == CHUNKED:
        return text.size("attention_chunk_size", default=0) // 2
    return text.size("sliding_window", default=0) if name == SLIDING else 0


def _ffn_of_type(
    name: str, ffn: Ffn | Experts, text: Config, family: Family, hidden: int, *, alone: bool
) -> Ffn | Experts | None:
    """Return the FFN of a layer; `alone` if every layer is either attention or an FFN (Nemotron-H)."""
    if not alone or name == MOE:
        return ffn
    return _dense(text, family, hidden, gated=family.gated is not False) if name == MLP else None


def _full_attention(text: Config, family: Family, hidden: int, window: int) -> FullAttention:
    heads = text.size("num_attention_heads")
    head_dim = text.size("head_dim", default=hidden // heads)
    if not head_dim:
        raise refusal("bad_model_key", key="num_attention_heads", value=heads)
    normed = text.get("qk_norm", text.get("use_qk_norm"))
    return FullAttention(
        heads=heads,
        kv_heads=1 if text.flag("multi_query") else text.size("num_key_value_heads", default=heads),
        head_dim=head_dim,
        bias=_flag(text, family.qkv_bias),
        output_bias=text.flag("o_proj_bias", _flag(text, family.output_bias)),
        qk_norm=_qk_norm(family, normed),
        gate=family.gate,
        sinks=family.sinks,
        softcap=bool(text.get("attn_logit_softcapping")),
        window=window,
        stores_scores=family.stores_scores,
    )


def _qk_norm(family: Family, normed: object) -> QkNorm:
    """Return the norm of queries and keys; `normed` is what the config says of it."""
    if normed is None:
        return family.qk_norm
    return (family.qk_norm if family.qk_norm != "none" else "heads") if normed else "none"


def _flag(text: Config, flag: Flag) -> bool:
    """Return a fact of the family, or what the config says under its key."""
    return text.flag(flag) if isinstance(flag, str) else flag


def _mla(text: Config, shared_by_values: int) -> Mla:
    """Return latent attention; `shared_by_values` is the width that value heads share if v_head_dim is absent."""
    if text.flag("attention_bias"):
        raise refusal("unsupported_model_key", key="attention_bias", value=True)
    heads = text.size("num_attention_heads")
    return Mla(
        heads=heads,
        q_lora=text.size("q_lora_rank", default=0),
        kv_lora=text.size("kv_lora_rank"),
        nope_dim=text.size("qk_nope_head_dim"),
        # 0: no positions (GLM-5.3).
        rope_dim=text.size("qk_rope_head_dim", default=0 if text.get("qk_rope_head_dim") == 0 else None),
        value_dim=text.size("v_head_dim", default=shared_by_values // heads or None),
    )


def _delta_net(text: Config, family: Family) -> GatedDeltaNet:
    return GatedDeltaNet(
        key_heads=text.size("linear_num_key_heads"),
        value_heads=text.size("linear_num_value_heads"),
        key_dim=text.size("linear_key_head_dim"),
        value_dim=text.size("linear_value_head_dim"),
        convolution=text.size("linear_conv_kernel_dim"),
        joined=family.joined,
    )


def _ffns(text: Config, family: Family, hidden: int, layers: int) -> list[Ffn | Experts]:
    """Return the FFN of every layer."""
    gated = family.gated
    if gated is None:
        gated = text.flag("mlp_gated", text.get("hidden_act", "silu") in ("silu", "swish"))
    count = text.size("num_experts", "num_local_experts", "n_routed_experts", default=0)
    dense = _dense(text, family, hidden, gated=gated, bias=not count and _flag(text, family.ffn_bias))
    if not count:
        return [dense] * layers
    moe = Experts(
        count=count,
        top_k=text.size("num_experts_per_tok"),
        width=text.size("moe_intermediate_size", default=dense.width or None),
        gated=gated,
        bias=family.expert_bias or text.flag("mlp_bias"),
        clamped=family.clamped or text.get("activation_limit") is not None,
        shared_width=dense.width if family.ffn_is_shared else _shared_width(text),
        shared_gate=family.shared_gate,
        router_bias=family.router_bias,
        dense=family.dense_experts,
        fp32_routing=family.fp32_routing,
        fp32_router=family.fp32_router,
        single=family.single_experts,
        leaf=family.leaf_experts,
    )
    return [moe if sparse else dense for sparse in _sparse(text, family, layers)]


def _dense(text: Config, family: Family, hidden: int, *, gated: bool, bias: bool = False) -> Ffn:
    """Return the FFN of a layer without experts. Its width is 0 if the config describes only experts."""
    if family.ffn_width:
        return Ffn(width=family.ffn_width(text), gated=gated, bias=bias)
    has_experts = text.size("num_experts", "num_local_experts", "n_routed_experts", default=0)
    usual = family.ffn_ratio * hidden or (0 if has_experts else None)
    function = None if gated else text.get("hidden_act")
    return Ffn(
        width=text.size("intermediate_size", default=usual),
        gated=gated,
        bias=bias,
        unfused=function == "gelu_new",
        xielu=function == "xielu",
    )


def _sparse(text: Config, family: Family, layers: int) -> list[bool]:
    """Return for every layer whether it has experts.

    A list of all layers, a list of those with experts (Llama 4), leading dense layers (DeepSeek), every n-th layer less
    those of a list (Qwen).
    """
    listed, frequency = text.get("mlp_layer_types"), text.get("moe_layer_freq", 1)
    if listed is None and isinstance(frequency, list):
        listed = ["sparse" if sparse else "dense" for sparse in frequency]
    if listed is not None:
        if not isinstance(listed, list) or len(listed) < layers:
            raise refusal("bad_model_key", key="mlp_layer_types", value=listed)
        return [name in WITH_EXPERTS for name in listed[:layers]]
    if text.get("moe_layers") is not None:
        with_experts = text.indexes("moe_layers", may_be_text=True)  # Step 3.7 has a text.
        return [index in with_experts for index in range(layers)]
    if text.get("expert_layer_period") is not None:
        period, offset = text.size("expert_layer_period"), text.size("expert_layer_offset", default=0)
        return [index % period == offset for index in range(layers)]
    if frequency != 1:
        raise refusal("unsupported_model_key", key="moe_layer_freq", value=frequency)
    leading = text.size("first_k_dense_replace", "num_dense_layers", default=0) or family.leading_dense
    step = text.size("decoder_sparse_step", default=1)
    dense = text.indexes("mlp_only_layers")
    return [index >= leading and (index + 1) % step == 0 and index not in dense for index in range(layers)]


def _shared_width(text: Config) -> int:
    width = text.size("shared_expert_intermediate_size", default=0)
    if text.get("moe_shared_width") is not None:
        return text.size("n_shared_experts", default=0) * text.size("moe_shared_width")
    return width or text.size("n_shared_experts", default=0) * text.size("moe_intermediate_size", default=0)
