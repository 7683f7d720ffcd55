"""What the backward pass of one layer of Hugging Face modules needs for a moment, beside what is saved."""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from backend.estimate.array_ops import Number, choose, larger, largest
from backend.estimate.memory.attention_scores import mask_bytes, saved_scores, score_work
from backend.estimate.memory.eager_activations import (
    EagerForm,
    eager_bytes,
    has_fused_function,
    is_read,
    operators_in_pairs,
)
from backend.estimate.memory.memory_term import Explanation, Piece, joined, largest_piece, piece, token_piece
from backend.estimate.memory.sharding import largest_unit
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.adapters import adapted_linears
from backend.estimate.model.layers import LayerKind, ModelLayers, operators_of, table_weights
from backend.estimate.plan import Plan
from backend.job.memory_traits import MemoryTraits
from backend.job.model.operators import (
    Activation,
    AltUp,
    BlockScores,
    Dispatch,
    IndexScores,
    Linear,
    Norm,
    Streams,
)

COPIES_IN_FFN, COPIES_IN_CORRECTION = 2, 5
"""Tensors of AltUp's size that are there in a layer's backward pass, beside what is saved: the layer's output, which a
checkpoint holds, and the gradient of the predictions; and before that the output and, in the correction, the gradients
of the output, of its copy and of two slices (transformers 5.6.0 modeling_gemma3n.py; counted in a trace of one step).
"""

COPIES_IN_ADDITION = 4
"""Tensors of the size of all residual streams when the backward pass of a layer begins: its output, the gradient of
that, and the products of this gradient with both factors of what is added to the streams (transformers 5.19
modeling_qwen4_exp.py; counted in a trace of one step)."""


def layer_work(
    kind: LayerKind, layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm
) -> Piece:
    """Return the bytes that a layer needs in its backward pass beside what is saved: in that of the FFN's projections,
    or before it."""
    # The gradients of the FFN, or of the scores of attention if they are stored and need more.
    ffn = plan.tokens * larger(_function_bytes(kind, form), score_work(kind, plan))
    copies = plan.tokens * _copies_bytes(kind, form)
    ffn = ffn + copies * COPIES_IN_FFN
    # The gradient of one weight in 16 bits, and its fp32 copy.
    largest_weight, each = _largest_weight(kind), _layer_gradient_bytes(plan, memory, form)
    weight = each * (largest_unit(layers) if memory.reduces_layers else largest_weight) if form.trained else 0
    # One weight of 4 bits, unpacked to 16 bits.
    unpacked = largest_weight * form.element if tuning.method == "qlora" else 0
    # The backward pass of the sum of the experts' outputs. Its tensors are freed before weights get gradients.
    routed = plan.tokens * _routed_bytes(kind, form)
    altup = copies * (COPIES_IN_ADDITION if operators_of(kind, Streams) else COPIES_IN_CORRECTION)
    altup = altup + plan.tokens * _fp32_addition_bytes(kind, form)
    # The adapter of the last projection, in the forward pass that checkpointing repeats. Its tensors are freed before
    # the gradients exist.
    adapter = plan.tokens * _adapter_bytes(kind, tuning.lora_targets, form) if form.adapters else 0
    index = plan.tokens * larger(
        _index_bytes(kind, plan, memory, tuning, form), _block_mask_bytes(kind, plan, memory, tuning, form)
    )

    def products() -> Explanation:
        projections = joined(
            token_piece("workspace_ffn", ffn, plan),
            piece("workspace_weight_gradient", weight, bytes_each=each, elements=None),
            piece("workspace_unpacked", unpacked, bytes_each=form.element, elements=None),
        )
        others = (
            token_piece("workspace_routed", routed, plan),
            token_piece("workspace_adapter", adapter, plan),
            token_piece("workspace_altup", altup, plan),
            token_piece("workspace_index", index, plan),
        )
        return largest_piece(projections, *others).products()

    return Piece(largest(ffn + weight + unpacked, routed, adapter, altup, index), products)


def _index_bytes(kind: LayerKind, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> Number:
    """Return the bytes per token of an indexer in the forward pass, less what the layer saves after its attention; 0
    without an indexer.

    transformers 5.19 modeling_deepseek_v32.py DeepseekV32Indexer.forward: queries as projected, rotated and joined, and
    the scores of every head. The product also needs queries in fp32, in 16 bits if autocast makes it, and with several
    sequences a copy of the keys for every query. Each step that scales or clips the scores makes a second copy of them.
    """
    indexers = operators_of(kind, IndexScores)
    if not indexers:
        return 0
    [indexer] = indexers
    autocast = memory.autocast_bytes > 0
    e = form.element
    element = e if autocast else 4
    queries = e * indexer.heads * (2 * indexer.key_dim + indexer.rotary)
    cast = (4 + autocast * e) * indexer.heads * indexer.key_dim
    entries = element * indexer.heads * plan.sequence_length / (indexer.pooled or 1)
    spread: Number = 0
    if indexer.spreads_keys:
        spread = choose(plan.micro_batch > 1, element * indexer.key_dim * plan.sequence_length, 0)
    at_once = queries + entries + larger(entries, cast + spread) + _residual_bytes(kind, form)
    later = _saved_after(kind, indexer, form) + mask_bytes(kind, plan, form)
    return larger(at_once - later - saved_scores(kind, plan, memory, tuning), 0)


def _block_mask_bytes(kind: LayerKind, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> Number:
    """Return the bytes per token of masks of blocks while they are made, less what the layer saves after its attention;
    0 without them.

    transformers 5.19 modeling_minimax_m3_vl.py MiniMaxM3VLIndexer: forward holds the scores of every key in fp32 twice.
    build_block_mask holds three masks of truth values for each head, and two in the precision of queries.
    """
    indexers = operators_of(kind, BlockScores)
    if not indexers or not indexers[0].masked_heads:
        return 0
    [indexer] = indexers
    entries = max(8 * indexer.heads, (3 + 2 * form.element) * indexer.masked_heads)
    at_once = entries * plan.sequence_length + _residual_bytes(kind, form)
    later = _saved_after(kind, indexer, form) + mask_bytes(kind, plan, form)
    return larger(at_once - later - saved_scores(kind, plan, memory, tuning), 0)


@lru_cache(maxsize=1024)
def _saved_after(kind: LayerKind, indexer: IndexScores | BlockScores, form: EagerForm) -> float:
    """Return the bytes per token that a layer saves after the attention of its indexer. Queries, keys and values of
    this attention exist before the indexer runs."""
    after = kind.operators[kind.operators.index(indexer) + 2 :]
    return eager_bytes(replace(kind, operators=after), form)


@lru_cache(maxsize=1024)
def _copies_bytes(kind: LayerKind, form: EagerForm) -> int:
    """Return the bytes per token of all copies of the hidden state, or of all residual streams; 0 with a single one."""
    several = (*operators_of(kind, AltUp), *operators_of(kind, Streams))
    return max((form.residual * op.copies * op.width for op in several), default=0)


@lru_cache(maxsize=1024)
def _fp32_addition_bytes(kind: LayerKind, form: EagerForm) -> int:
    """Return the bytes per token that COPIES_IN_ADDITION lacks if streams in 16 bits are added to in fp32: the gradient
    in fp32 and its copy in 16 bits for the streams, and the other half of both products (transformers 5.19
    modeling_hy_v4.py; counted in a trace of one step)."""
    spreads = [each for each in operators_of(kind, Streams) if each.step == "spread" and not each.rounds]
    more = 4 + form.residual + 2 * (4 - form.residual)
    return max((more * each.copies * each.width for each in spreads), default=0) if form.residual < 4 else 0


@lru_cache(maxsize=1024)
def _function_bytes(kind: LayerKind, form: EagerForm) -> float:
    """Return the bytes per token of the gradients in the backward pass of the widest function of the FFN: those of its
    input, and for xIELU those of its steps. The gradient of its output takes the place of what the next projection
    saved, if it saved its input. Liger's kernel overwrites its saved inputs, so that there is only the gradient of its
    output.

    transformers 5.6 activations.py XIELUActivation: when alpha_n's step runs, the gradients of both branches, of the
    input, of the step's product and, if trained, of alpha_n's factor are there.
    """
    e, branch = form.element, form.residual
    steps = e + branch * (4 if form.trained else 3)
    sizes = []
    for op, after in operators_in_pairs(kind):
        if isinstance(op, Activation):
            inputs = steps if op.xielu else 2 * e if op.gated else e
            of_output = 0 if is_read(after, kind, form) or op.module == "moe" else e
            sizes.append(op.width * (e if has_fused_function(op, form) else inputs + of_output))
    # A profile may have found no function that it knows.
    return max(sizes or [e * op.outputs for op in kind.operators if isinstance(op, Linear)])


@lru_cache(maxsize=1024)
def _largest_weight(kind: LayerKind) -> int:
    """Return the elements of the largest weight of a layer. The gradient of a table of embeddings has all rows."""
    # Routed experts are one parameter with three dimensions in transformers 5, so their gradient is one tensor.
    weights = [
        op.inputs * op.outputs // op.parts * (1 if op.single else op.copies)
        for op in kind.operators
        if isinstance(op, Linear)
    ]
    return max(*weights, table_weights(kind))


@lru_cache(maxsize=1024)
def _routed_bytes(kind: LayerKind, form: EagerForm) -> float:
    """Return the bytes per token in the backward pass of the sum of the experts' outputs; 0 without experts.

    transformers 5.6.0 integrations/moe.py grouped_mm_experts_forward: the gradient of the weighted outputs, and its
    products with the weights and with the outputs, one row for each expert of a token. The first product is cast if the
    weights are in fp32.
    """
    size = 0.0
    for dispatch in operators_of(kind, Dispatch):
        weight = 4 if dispatch.fp32_routing else form.element
        cast = form.element if weight > form.element else 0
        size += dispatch.top_k * dispatch.hidden * (3 * weight + cast) + _residual_bytes(kind, form)
    return size


@lru_cache(maxsize=1024)
def _adapter_bytes(kind: LayerKind, targets: str, form: EagerForm) -> float:
    """Return the bytes per token that the adapter of the layer's last projection needs in the forward pass, beside what
    it saves.

    peft 0.18.1 tuners/lora/layer.py Linear.forward: an fp32 adapter makes an fp32 copy of its input, which autocast
    copies again to 16 bits; the projection's output, the adapter's output and their scaled product are there at once.
    The output of the norm before the FFN is an argument of its forward function, which holds it until it returns
    (transformers 5.6 modeling_llama.py LlamaMLP, LlamaDecoderLayer; counted in a trace of one step).
    """
    last = {after for before, after in pairwise(kind.operators) if isinstance(before, Activation)}
    every = [linear for linear, _ in adapted_linears(kind, targets) if linear in last]
    copies = form.element + 4 if form.casts else 0
    most = max((copies * each.inputs + 3 * form.element * each.outputs for each in every), default=0)
    # Without a norm before it (OLMo 2) the argument is the residual stream itself.
    is_normed = isinstance(kind.operators[0], Norm)
    return most + form.residual * kind.hidden * is_normed + _residual_bytes(kind, form)


def _residual_bytes(kind: LayerKind, form: EagerForm) -> int:
    """Return the bytes per token of the residual streams and of the gradient of the layer's output."""
    streams = max((op.copies for op in operators_of(kind, Streams)), default=1)
    return 2 * form.residual * kind.hidden * streams


def new_gradient_bytes(memory: MemoryTraits, form: EagerForm) -> float:
    """Return the bytes of an element of a new gradient, its 16-bit form included."""
    passing = memory.gradient_bytes if memory.passing_gradient_bytes is None else memory.passing_gradient_bytes
    return passing + form.element


def _layer_gradient_bytes(plan: Plan, memory: MemoryTraits, form: EagerForm) -> Number:
    """Return the same of a decoder layer. While whole gradients accumulate, the new one is added to them before they
    are reduced, so that both are never there together (counted by benchmarks/fsdp_step.py)."""
    new = new_gradient_bytes(memory, form)
    added = larger(form.element, new - form.element)
    return choose(plan.micro_batches > 1, added, new) if memory.accumulates_whole else new
