"""Layers of models that mix attention with state spaces and convolutions: what their config.json says.

Each reader names the file of transformers 5.6 that it was read from.
"""

from backend.job.model.config import Config, refusal
from backend.job.model.linear_shape import ShortConvolution, StateSpace

ATTENTION, MAMBA, CONVOLUTION, HYBRID = "attention", "mamba", "conv", "hybrid"
MLP, MOE = "mlp", "moe"
"""Layers that are only an FFN, or only experts (Nemotron-H)."""

_PATTERN = {"M": MAMBA, "*": ATTENTION, "-": MLP, "E": MOE}


def second(config: Config, hidden: int) -> StateSpace:
    """Mamba 2 of modeling_bamba.py, modeling_granitemoehybrid.py."""
    return _second(config, config.size("mamba_expand") * hidden, normed=True)


def beside_attention(config: Config, hidden: int) -> StateSpace:
    """Mamba 2 of modeling_falcon_h1.py."""
    inner = config.size("mamba_d_ssm", default=config.size("mamba_expand") * hidden)
    return _second(config, inner, normed=config.flag("mamba_rms_norm"))


def _second(config: Config, inner: int, *, normed: bool) -> StateSpace:
    return StateSpace(
        inner=inner,
        state=config.size("mamba_d_state"),
        convolution=config.size("mamba_d_conv"),
        heads=config.size("mamba_n_heads"),
        groups=config.size("mamba_n_groups"),
        chunk=config.size("mamba_chunk_size"),
        bias=config.flag("mamba_proj_bias"),
        convolution_bias=config.flag("mamba_conv_bias"),
        normed=normed,
    )


def nemotron(config: Config, _hidden: int) -> StateSpace:
    """Mamba 2 of modeling_nemotron_h.py."""
    heads = config.size("mamba_num_heads")
    return StateSpace(
        inner=heads * config.size("mamba_head_dim"),
        state=config.size("ssm_state_size"),
        convolution=config.size("conv_kernel"),
        heads=heads,
        groups=config.size("n_groups"),
        chunk=config.size("chunk_size"),
        bias=config.flag("use_bias"),
        convolution_bias=config.flag("use_conv_bias"),
    )


def first(config: Config, hidden: int) -> StateSpace:
    """Mamba 1 of modeling_jamba.py."""
    rank = config.get("mamba_dt_rank")
    return StateSpace(
        inner=config.size("mamba_expand") * hidden,
        state=config.size("mamba_d_state"),
        convolution=config.size("mamba_d_conv"),
        rank=-(-hidden // 16) if rank in (None, "auto") else config.size("mamba_dt_rank"),
        bias=config.flag("mamba_proj_bias"),
        convolution_bias=config.flag("mamba_conv_bias"),
    )


def convolution(config: Config) -> ShortConvolution:
    """modeling_lfm2.py."""
    return ShortConvolution(convolution=config.size("conv_L_cache"), bias=config.flag("conv_bias"))


def all_mamba(_config: Config, layers: int) -> list[str]:
    """configuration_granitemoehybrid.py."""
    return [MAMBA] * layers


def all_hybrid(_config: Config, layers: int) -> list[str]:
    """configuration_falcon_h1.py."""
    return [HYBRID] * layers


def listed_attention(config: Config, layers: int) -> list[str]:
    """configuration_bamba.py."""
    indexes = config.indexes("attn_layer_indices")
    return [ATTENTION if index in indexes else MAMBA for index in range(layers)]


def listed_full_attention(config: Config, layers: int) -> list[str]:
    """configuration_lfm2.py."""
    if config.get("full_attn_idxs") is None:
        return [ATTENTION] * layers
    indexes = config.indexes("full_attn_idxs")
    return [ATTENTION if index in indexes else CONVOLUTION for index in range(layers)]


def periodic_attention(config: Config, layers: int) -> list[str]:
    """configuration_jamba.py."""
    period, offset = config.size("attn_layer_period"), config.size("attn_layer_offset", default=0)
    return [ATTENTION if index % period == offset else MAMBA for index in range(layers)]


def nemotron_types(config: Config) -> list[str]:
    """Return the types in the list or the pattern of configuration_nemotron_h.py, which also give the number of
    layers."""
    listed, pattern = config.get("layers_block_type"), config.get("hybrid_override_pattern")
    if listed is None and isinstance(pattern, str):
        listed = [_PATTERN.get(letter) for letter in pattern]
    if listed is None:
        listed = [MAMBA, MOE, ATTENTION, MLP]
    if not isinstance(listed, list) or not {*listed} <= {*_PATTERN.values()}:
        raise refusal("bad_model_key", key="layers_block_type", value=config.get("layers_block_type", pattern))
    return listed
