"""What differs between the layers of Gemma 3n, Gemma 4 and ERNIE 4.5 VL, by their place and their config.json.

Each reader names the file of transformers 5.6 that it was read from.
"""

from collections.abc import Sequence
from dataclasses import replace

from backend.job.model.attention_shape import FullAttention
from backend.job.model.config import Config, refusal
from backend.job.model.shape import Experts, Ffn, LayerShape

MOST_WIDTH, MOST_COPIES = 10**9, 64
_GLOBAL_HEAD = 512
"""Width of a head of a global layer of Gemma 4, if config.json does not give it."""


def gemma4_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """Return a layer of modeling_gemma4.py.

    The last layers may read keys and values of earlier ones. Global layers have heads of their own width, and may use
    the keys as values. Experts work beside a dense FFN.
    """
    joins, mixes = config.flag("attention_k_eq_v"), config.flag("enable_moe_block")
    return _gemma4_layer(config, layer, index, layers, joins=joins, mixes=mixes)


def diffusion_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """Return a layer of 5.19 modeling_diffusion_gemma.py, whose encoder and decoder share their weights."""
    return _gemma4_layer(config, layer, index, layers, joins=True, mixes=True)


def self_conditioning(config: Config, hidden: int, _layers: int) -> int:
    """Return the weights of DiffusionGemmaSelfConditioning: an FFN and a norm."""
    return 3 * hidden * config.size("intermediate_size") + hidden


def _gemma4_layer(
    config: Config, layer: LayerShape, index: int, layers: int, *, joins: bool, mixes: bool
) -> LayerShape:
    """`joins`: whether global layers use the keys as values; `mixes`: whether there are experts."""
    attention = layer.attention
    if not isinstance(attention, FullAttention):
        raise refusal("unsupported_model_key", key="layer_types", value=type(attention).__name__)
    is_shared = _is_shared(config, index, layers)
    joined = joins and not attention.window
    head_dim, kv_heads = _heads(config, attention, index, joined=joined)
    attention = replace(
        attention,
        head_dim=head_dim,
        kv_heads=kv_heads,
        projects="queries" if is_shared else "keys" if joined else "all",
        value_norm=not is_shared,
    )
    width = config.size("intermediate_size") * (2 if config.flag("use_double_wide_mlp") and is_shared else 1)
    ffn: Ffn | Experts = Ffn(width=width, gated=True, gelu=True)
    other = 0
    if mixes:
        count, hidden = config.size("num_experts"), config.size("hidden_size")
        ffn = Experts(
            count=count,
            top_k=config.size("top_k_experts"),
            width=config.size("moe_intermediate_size"),
            gated=True,
            shared_width=width,
            gelu=True,
        )
        # Two scales of the router.
        other = hidden + count
    return replace(layer, attention=attention, ffn=ffn, other=other, per_layer=_per_layer(config), expert_norms=mixes)


def _heads(config: Config, attention: FullAttention, index: int, *, joined: bool) -> tuple[int, int]:
    """Return the width of a head and the number of key heads of a layer: its own (transformers 5.19 writes them in
    `per_layer_config`), or those that all global layers have."""
    layers = config.get("per_layer_config")
    if layers is not None:
        # Names of layers are numbers, with leading zeros or without.
        try:
            own = {int(name): values for name, values in layers.items()}.get(index, {})
            known = own.keys() <= {"head_dim", "num_key_value_heads"}
        except (AttributeError, TypeError, ValueError):
            known = False
        if not known:
            raise refusal("bad_model_key", key="per_layer_config", value=layers)
        of_layer = Config(own)
        return (
            of_layer.size("head_dim", default=attention.head_dim),
            of_layer.size("num_key_value_heads", default=attention.kv_heads),
        )
    if attention.window:
        return attention.head_dim, attention.kv_heads
    return (
        # A null means that all layers have heads of one width.
        config.size("global_head_dim", default=attention.head_dim if config.has("global_head_dim") else _GLOBAL_HEAD),
        config.size("num_global_key_value_heads", default=attention.kv_heads) if joined else attention.kv_heads,
    )


def _is_shared(config: Config, index: int, layers: int) -> bool:
    """Return whether a layer reads the keys and values of an earlier one."""
    return index >= layers - config.size("num_kv_shared_layers", default=0) > 0


def gemma3n_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """Return a layer of modeling_gemma3n.py."""
    attention, ffn = layer.attention, layer.ffn
    if not isinstance(attention, FullAttention) or not isinstance(ffn, Ffn):
        raise refusal("unsupported_model_key", key="layer_types", value=type(attention).__name__)
    is_shared = _is_shared(config, index, layers)
    return replace(
        layer,
        attention=replace(attention, projects="queries" if is_shared else "all", value_norm=not is_shared),
        ffn=replace(ffn, width=_widths(config, layers)[index], sparse=_sparsities(config, layers)[index] > 0),
        # The scale of the corrected copy.
        other=config.size("hidden_size"),
        per_layer=config.size("hidden_size_per_layer_input"),
        altup=config.size("altup_num_inputs", largest=MOST_COPIES),
        laurel=config.size("laurel_rank"),
    )


def gemma3n_width(config: Config) -> int:
    """Return the width of the first layer's FFN; `gemma3n_layer` sets that of each layer."""
    width = config.get("intermediate_size")
    return width[0] if isinstance(width, list | tuple) and width else config.size("intermediate_size")


def _widths(config: Config, layers: int) -> Sequence[int]:
    """Return the width of every layer's FFN, from one number or a list."""
    widths = config.get("intermediate_size")
    if not isinstance(widths, list | tuple):
        return [config.size("intermediate_size")] * layers
    if len(widths) != layers or not all(type(width) is int and 0 < width <= MOST_WIDTH for width in widths):
        raise refusal("bad_model_key", key="intermediate_size", value=widths)
    return widths


def _sparsities(config: Config, layers: int) -> Sequence[float]:
    """Return the share of every layer's activations that are set to 0."""
    shares = config.get("activation_sparsity_pattern")
    if shares is None:
        sparse = 10 if layers > 10 else 0
        return [0.95] * sparse + [0.0] * (layers - sparse)
    if (
        not isinstance(shares, list | tuple)
        or len(shares) != layers
        or not all(type(share) in (int, float) and 0 <= share < 1 for share in shares)
    ):
        raise refusal("bad_model_key", key="activation_sparsity_pattern", value=shares)
    return tuple(shares)


def per_layer_table(config: Config, _hidden: int, layers: int) -> int:
    """Return the weights of the table of the layers' own embeddings (Gemma 3n, Gemma 4)."""
    width = _per_layer(config) * layers
    return width * config.size("vocab_size_per_layer_input") if width else 0


def _per_layer(config: Config) -> int:
    return config.size("hidden_size_per_layer_input", default=0)


def ernie_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """Return a layer of modeling_ernie4_5_vl_moe.py, which has experts for text and smaller ones for images.

    All tokens are taken to use experts of the text, so time and activations are those of a sample without images.
    """
    if not isinstance(layer.ffn, Experts):
        return layer
    widths, hidden = config.values.get("moe_intermediate_size", [1536, 512]), config.size("hidden_size")
    if not isinstance(widths, list | tuple) or len(widths) != 2 or not all(type(w) is int and w > 0 for w in widths):
        raise refusal("bad_model_key", key="moe_intermediate_size", value=widths)
    text, images = widths
    shared = config.size("moe_num_shared_experts", default=0) * text
    other = layer.ffn.count * (3 * hidden * images + hidden + 1)
    return replace(layer, ffn=replace(layer.ffn, width=text, shared_width=shared), other=other)
