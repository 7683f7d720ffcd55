"""Memory of Megatron-Core's attention over chosen keys, on one rank and for one micro-batch.

The bytes were counted on megatron-core 0.19.2's own modules, with torch's operations: the optional kernels
(dsa_kernel_backend) are off unless a job asks for them. An entry is a score of one head for a query and a key; a pair
is a query and a key.
"""

from backend.estimate.array_ops import Number, choose, larger
from backend.estimate.memory.memory_term import Piece, largest_piece, token_piece
from backend.estimate.model.layers import LayerKind, operators_of
from backend.estimate.plan import Plan
from backend.job.model.operators import ChosenKeys, IndexScores

ENTRY_SAVED = 13
"""Bytes of an entry that are saved: the exponential and the share before it is divided, in fp32; the share in 16 bits;
and three masks of bytes (dsa_masking.py masked_softmax, dsa.py _unfused_absorbed_dsa_fn)."""
ENTRY_BACKWARD = 17
"""Bytes of an entry beside them at the peak of the core's backward pass."""
ENTRY_FORWARD, PAIR_FORWARD = 14, 5
"""The same in its forward pass: three tensors in fp32 of an entry, and the mask of a pair in fp32 and as bytes."""
INDEX_ENTRY = 8
"""Bytes of an entry of the indexer: two tensors in fp32 (dsa.py _compute_index_scores)."""
ROW_SAVED = 17
"""Bytes that the softmax of a query's head saves: the place of the maximum, the sum twice, and a mask."""
PLACE = 8
"""Bytes of the number of a key."""


def keys_of(plan: Plan) -> Number:
    """Return the keys for which a query has scores: those of all sequences of a micro-batch if ms-swift joins them to
    one (4.6.0 megatron_args.py padding_free), or else those of its own (batch.padding)."""
    return plan.tokens * plan.context if plan.concatenated else plan.sequence_length


def core_saved(core: ChosenKeys, kind: LayerKind, plan: Plan) -> Number:
    """Return what the core saves, or, where a checkpoint is around it, its inputs."""
    tensors = 2.0 * (core.latent + core.rotary) * plan.tokens * (core.heads / plan.tensor + 1)
    return choose(plan.attention_recompute, tensors + kept_choices(kind, plan), _inside(core, plan))


def core_revived(core: ChosenKeys, plan: Plan) -> Number:
    """Return what a checkpoint around the core restores."""
    return choose(plan.attention_recompute, _inside(core, plan), 0.0)


def _inside(core: ChosenKeys, plan: Plan) -> Number:
    """Return what the core saves. Each rank holds the keys of all ranks, in fp32 and in 16 bits, the order in which
    context parallelism puts them, and a copy of the weight of the values."""
    width, heads = core.latent + core.rotary, core.heads / plan.tensor
    queries = heads * (4.0 * width + ROW_SAVED + 2 * core.latent) * plan.tokens
    keys = (6.0 * width + choose(plan.context > 1, PLACE, 0)) * plan.tokens * plan.context
    return queries + keys + 2 * heads * core.value_dim * core.latent + ENTRY_SAVED * _entries(core, plan)


def kept_choices(kind: LayerKind, plan: Plan) -> Number:
    """Return the bytes of the choices that later layers share; the checkpoint of each layer holds them."""
    indexers = operators_of(kind, IndexScores)
    kept = sum([each.kept for each in indexers]) if indexers else 0
    return PLACE * plan.tokens * kept if kept else 0.0


def core_work(core: ChosenKeys, kind: LayerKind, plan: Plan) -> Piece:
    """Return the bytes that the core or its indexer needs beside what is saved."""
    entries, pairs = _entries(core, plan), plan.tokens * keys_of(plan)
    scores = larger(ENTRY_BACKWARD * entries, ENTRY_FORWARD * entries + PAIR_FORWARD * pairs)
    attention = token_piece("workspace_attention", scores, plan)
    indexers = operators_of(kind, IndexScores)
    if not indexers:
        return attention
    # The indexer runs before the core, whose tensors do not exist yet.
    [indexer] = indexers
    index = larger(INDEX_ENTRY * indexer.heads * pairs - ENTRY_SAVED * entries, 0.0)
    return largest_piece(attention, token_piece("workspace_index", index, plan))


def _entries(core: ChosenKeys, plan: Plan) -> Number:
    return core.heads / plan.tensor * plan.tokens * keys_of(plan)
