"""What attention of Hugging Face modules saves beside queries, keys and values: scores, masks and repeated keys."""

from functools import lru_cache

from backend.estimate.array_ops import Number, choose, smaller
from backend.estimate.memory.eager_activations import EagerForm
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.layers import LayerKind, TowerPart, operators_of
from backend.estimate.plan import Plan
from backend.job.attention import AttentionKind
from backend.job.memory_traits import MemoryTraits
from backend.job.model.operators import Attention

SCORE_SAVED, SCORE_WORK = 6, 4
"""Bytes of an entry of the score matrix that attention saves if it is not fused (transformers' eager_attention_forward:
the softmax in fp32 and its 16-bit copy), and those of its gradient in backward, beside what is saved."""
SINKS_IN_16_BITS, OTHER_SINKS, FP32_SINKS_WORK = 2, 8, 8
"""SCORE_SAVED of attention with sinks. gpt-oss's softmax has the precision of its sinks (transformers 5.6.0
modeling_gpt_oss.py eager_attention_forward). The 8 bytes in fp32 are what torch's MemTracker counted in steps of a
small model with 1,024 tokens. Granite's sinks read the scores, a softmax in fp32 and its 16-bit copy (5.19
modeling_granite_swa.py). FP32_SINKS_WORK is SCORE_WORK of a softmax in fp32 of scores less the largest: the gradient of
what it returns, and of what it reads (5.19 modeling_deepseek_v4.py and modeling_hy_v4.py)."""
MATH_SAVED, MATH_WORK = 4, 8
"""The same of the math kernel of torch's SDPA, which is in fp32: the softmax; the gradients of what it returns and of
what it reads (counted in torch 2.13 on CPU)."""
OF_SOFTCAP = 2
"""Bytes of tanh's output beside SCORE_SAVED, if it bounds the scores (modeling_gemma2.py eager_attention_forward)."""


def score_work(kind: LayerKind, plan: Plan) -> Number:
    """Return the bytes per token of gradients of the score matrices of a layer; 0 with fused attention, which stores
    none."""
    storing = _storing(kind, plan.attention)
    each_entry = [FP32_SINKS_WORK if each.sinks == "fp32_logit" else SCORE_WORK for each in storing]
    size = sum(_entries(each) * size for each, size in zip(storing, each_entry, strict=True))
    return _times_keys(size + MATH_WORK * sum(each.heads for each in _of_math_kernel(kind, plan)), kind, plan)


def _entries(attention: Attention) -> float:
    """Return the entries of the score matrix for each token of a sequence and query, compressed keys included."""
    return attention.heads * (1 + 1 / attention.entry if attention.entry else 1)


def saved_scores(kind: LayerKind, plan: Plan, memory: MemoryTraits, tuning: Tuning) -> Number:
    """Return the bytes per token of the score matrices that a layer saves."""
    in_fp32 = memory.weight_bytes == 4 and tuning.method == "full"
    size = sum(_entries(each) * _saved_entry(each, in_fp32) for each in _storing(kind, plan.attention))
    return _times_keys(size + MATH_SAVED * sum(each.heads for each in _of_math_kernel(kind, plan)), kind, plan)


def _saved_entry(attention: Attention, in_fp32: bool) -> int:
    """Return the bytes of an entry of the score matrix that attention saves; `in_fp32`: the sinks are in fp32."""
    if attention.rounds_softmax and not in_fp32:
        return SINKS_IN_16_BITS
    if attention.sinks and attention.sinks != "fp32_logit":
        return SINKS_IN_16_BITS if attention.sinks == "logit" and not in_fp32 else OTHER_SINKS
    return SCORE_SAVED + OF_SOFTCAP * attention.softcap


def tower_scores(part: TowerPart, seen: Number, plan: Plan) -> Number:
    """Return the bytes per row of the score matrices that a block of a tower saves; a row attends to `seen` patches."""
    size: Number = 0
    for each in operators_of(part.kind, Attention) if plan.attention == "scores" else ():
        keys = seen / part.joined
        size = size + SCORE_SAVED * each.heads * (smaller(each.window, keys) if each.window else keys)
    return size


def _times_keys(size: float, kind: LayerKind, plan: Plan) -> Number:
    if not size:
        return 0
    keys: Number = plan.cross_attention_length if kind.of_images else plan.sequence_length
    return size * keys


@lru_cache(maxsize=1024)
def _storing(kind: LayerKind, attention: AttentionKind) -> tuple[Attention, ...]:
    """Return the attention cores that store their scores."""
    return tuple(each for each in operators_of(kind, Attention) if attention == "scores" or each.stores_scores)


def _of_math_kernel(kind: LayerKind, plan: Plan) -> tuple[Attention, ...]:
    """Return the attention cores that run as the math kernel."""
    return _sharing_keys(kind) if plan.attention == "math" else ()


@lru_cache(maxsize=1024)
def _sharing_keys(kind: LayerKind) -> tuple[Attention, ...]:
    return tuple(each for each in operators_of(kind, Attention) if each.shares_keys)


def mask_bytes(kind: LayerKind, plan: Plan, form: EagerForm) -> Number:
    """Return the bytes per token of the masks of chosen keys that fused attention saves in the precision of queries;
    unfused attention adds them to its scores."""
    masks = sum(each.masked * each.mask_heads for each in operators_of(kind, Attention))
    if not masks or plan.attention == "scores":
        return 0
    size: Number = masks * form.element * plan.sequence_length
    return size


def repeated_keys(kind: LayerKind, plan: Plan, tuning: Tuning, form: EagerForm) -> int:
    """Return the bytes per token of keys and values that SDPA saves once for every query head if there is a mask
    (transformers 5.6.0 integrations/sdpa_attention.py use_gqa_in_sdpa).

    The math kernel saves them in fp32, and the queries, instead of what a fused kernel saves.
    """
    if plan.attention == "math":
        cores = _of_math_kernel(kind, plan)
        whole = 4 * sum(each.heads * (2 * each.key_dim + each.value_dim) for each in cores)
        shared = sum(each.heads * each.key_dim + each.kv_heads * (each.key_dim + each.value_dim) for each in cores)
        return whole - form.element * shared
    if not tuning.masks_packs or plan.attention == "scores":
        return 0
    repeated = [each for each in operators_of(kind, Attention) if not each.masked and not each.cross]
    return sum(form.element * _repeated(each) for each in repeated)


def _repeated(attention: Attention) -> int:
    """Return the elements per token of keys and values that transformers repeats. A single head of keys is expanded,
    which copies nothing."""
    copies = attention.heads - attention.kv_heads if attention.kv_heads > 1 else 0
    return copies * (attention.key_dim + attention.value_dim)


def needed_masks(kind: LayerKind, plan: Plan, tuning: Tuning, form: EagerForm) -> Number:
    """Return the bytes per token of the masks of windows and of padding that SDPA saves, and of the keys and values
    that transformers repeats for them.

    transformers makes one mask of truth values for all layers (5.6.0 masking_utils.py sdpa_mask). torch makes it one in
    the precision of queries in each, which the backward pass reads (2.13 torchgen derivatives.yaml
    _scaled_dot_product_efficient_attention). Small models of Gemma 3 saved exactly this on CPU (transformers 5.6.0).
    """
    size: Number = 0
    if plan.attention not in ("sdpa", "math") or tuning.masks_packs:
        return size
    for each in operators_of(kind, Attention):
        if each.stores_scores or each.masked or each.cross or not each.causal:
            continue
        if each.shares_keys and plan.attention == "math":
            continue
        has_mask = (plan.sequence_length >= each.window) | tuning.masks_padding if each.window else tuning.masks_padding
        size = size + choose(has_mask, form.element * (_repeated(each) + plan.sequence_length), 0)
    return size
