"""The work of one layer beside arithmetic: bytes that it moves and kernels that it starts, from its operators.

A matrix product reads both operands and writes the result. All other operators (norms, activations, residual sums,
routing) are bound by memory. There are two implementations, as in saved_activations.py and
eager_activations.py: fused kernels (Transformer Engine) and Hugging Face's modules.
"""

from dataclasses import dataclass
from functools import lru_cache

from backend.estimate.model.chosen_keys import ABSORBED
from backend.estimate.model.layers import LayerKind
from backend.estimate.time.operator_kernels import MOVED_BACKWARD, STARTED_BACKWARD, Routing, operator_kernels
from backend.job.liger import NONE, Kernels
from backend.job.model.operators import (
    Activation,
    Attention,
    ChosenKeys,
    Dispatch,
    IndexScores,
    Linear,
    Norm,
)

NO_CORE = Attention(heads=0, kv_heads=0, key_dim=0, value_dim=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerKernels:
    """Forward work of one layer, per token unless stated. TP divides `split`; `expert` is for the tokens of experts;
    only sequence parallelism divides `whole`."""

    gemm_split: float = 0.0
    """Multiply-adds in projections."""
    gemm_whole: float = 0.0
    gemm_expert: float = 0.0
    weights_split: float = 0.0
    """Elements of the weights of projections, for any number of tokens."""
    weights_whole: float = 0.0
    weights_expert: float = 0.0
    operands_split: float = 0.0
    """Elements of inputs and outputs of the projections."""
    operands_full: float = 0.0
    """Elements of inputs and outputs that are gathered over TP."""
    operands_expert: float = 0.0
    packed_split: float = 0.0
    """Elements of weights that 4-bit loading packs."""
    packed_whole: float = 0.0
    packed: float = 0.0
    """Modules that hold packed weights."""
    fused: bool = True
    """Whether Transformer Engine's kernels run, and not Hugging Face's modules."""
    attention: float = 0.0
    """FLOPs of the attention core per token of context, without a causal mask."""
    causal: bool = False
    window: int = 0
    """As in Attention."""
    recurrence: float = 0.0
    """FLOPs of linear attention per token."""
    scores: float = 0.0
    """Attention heads: entries of the score matrix per token of context."""
    index: float = 0.0
    """FLOPs of an indexer's scores per token of context, forward only."""
    index_moved: float = 0.0
    """Bytes that an indexer's scores move per token of context, forward only."""
    untrained: float = 0.0
    """Multiply-adds in projections without a backward pass, forward only."""
    square: float = 0.0
    """FLOPs in 16 bits of attention over chosen keys, for a pair of a query and a key; TP divides this and the next
    three."""
    square_single: float = 0.0
    """The same in fp32."""
    square_moved: float = 0.0
    """Bytes that it moves for such a pair, forward."""
    square_moved_back: float = 0.0
    pair_moved: float = 0.0
    """Bytes for such a pair that no head has alone, and those of the indexer, forward."""
    index_single: float = 0.0
    """FLOPs of the indexer for such a pair in fp32, forward."""
    latent_key: float = 0.0
    """Elements of the key that all heads share, which context parallelism gathers."""
    looped: float = 0.0
    """Kernels that are started for each token, forward only."""
    moved_split: float = 0.0
    """Bytes that memory-bound kernels read and write."""
    moved_whole: float = 0.0
    moved_expert: float = 0.0
    moved_back_split: float = 0.0
    """Bytes that memory-bound kernels read and write in the backward pass."""
    moved_back_whole: float = 0.0
    moved_back_expert: float = 0.0
    kernels: float = 0.0
    """Kernels that are started, for any number of tokens: those of all operators if they are fused, else those of
    products, attention, linear attention and state spaces."""
    small_kernels: float = 0.0
    """Memory-bound kernels of Hugging Face's modules, forward."""
    small_kernels_back: float = 0.0
    """The same for the gradient of the input."""
    loop_kernels: float = 0.0
    """Kernels more if one product after the other replaces the grouped products of Hugging Face's experts."""
    kernels_expert: float = 0.0
    """Kernels that are started for each expert on the rank."""
    modules: float = 0.0
    """Hugging Face modules that hold parameters."""
    tensors: float = 0.0
    """Parameters as the optimizer sees them."""
    tensors_expert: float = 0.0
    """Parameters of all experts as the optimizer sees them."""
    outputs_gathered: float = 0.0
    """Pairs of a gather before and a reduction after TP-split projections."""
    gathered: float = 0.0
    """Elements that each pair exchanges."""
    dispatched: float = 0.0
    """Elements that are sent to experts and back."""
    hidden: float = 0.0
    """Elements of one token that is sent."""
    keys: float = 0.0
    """Elements of keys and values, which a ring of context parallelism passes on."""
    queries: float = 0.0
    """Elements of queries and outputs, which an all-to-all exchanges with keys and values."""
    stores_scores: bool = False
    """As in Attention (backend/job/model/operators.py)."""
    shares_keys: bool = False
    """As in Attention."""
    masked: bool = False
    """As in Attention."""


@lru_cache(maxsize=2048)
def layer_kernels(
    kind: LayerKind,
    fused: bool,
    only: tuple[str, ...] | None = None,
    routing: Routing = "plain",
    rope_fused: bool = True,
    liger: Kernels = NONE,
) -> LayerKernels:
    """Return the sums over the operators of a layer; with `only`, over the operators that these modules recompute.

    `liger` has the parts of Hugging Face's modules that Liger's kernels compute.
    """
    sums: dict[str, float] = {}
    core = NO_CORE
    for index, operator in enumerate(kind.operators):
        if only is not None and not {*_modules(kind, index)} & {*only}:
            continue
        if isinstance(operator, Attention):
            core = operator
        sums_of_operator = operator_kernels(operator, kind.hidden, fused, routing, rope_fused, liger)
        for where in ("split", "whole", "expert"):
            if f"moved_{where}" in sums_of_operator:
                sums_of_operator.setdefault(f"moved_back_{where}", MOVED_BACKWARD * sums_of_operator[f"moved_{where}"])
        if "small_kernels" in sums_of_operator:
            sums_of_operator.setdefault("small_kernels_back", STARTED_BACKWARD * sums_of_operator["small_kernels"])
        for name, value in sums_of_operator.items():
            sums[name] = sums.get(name, 0.0) + value
    return LayerKernels(
        **sums,
        fused=fused,
        causal=core.causal,
        window=core.window,
        stores_scores=core.stores_scores,
        shares_keys=core.shares_keys,
        masked=core.masked,
    )


def _modules(kind: LayerKind, index: int) -> tuple[str, ...]:
    """Return the recompute modules that contain an operator."""
    operator = kind.operators[index]
    if isinstance(operator, Attention | ChosenKeys | IndexScores):
        return ("core_attn",)
    if isinstance(operator, Activation):
        return {"mlp": ("mlp",), "moe": ("moe", "moe_act"), "shared_experts": ("moe", "shared_experts")}[
            operator.module
        ]
    if isinstance(operator, Linear):
        if operator.untrained:
            return ("core_attn",)
        if operator.name in ("q_up", "kv_up", ABSORBED):
            return ("mla_up_proj",)
        if operator.name.startswith("shared"):
            return ("moe", "shared_experts")
        if operator.name.startswith("expert") or operator.name == "router":
            return ("moe",)
        return ("mlp",) if operator.name in ("up", "down") else ()
    if isinstance(operator, Dispatch):
        return ("moe",)
    return ("layernorm",) if isinstance(operator, Norm) and operator.detached else ()
