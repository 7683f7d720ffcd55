"""The work of single operators: bytes that they move and kernels that they start. kernels.py sums them for a layer."""

from collections.abc import Mapping
from typing import Literal

from backend.job.liger import Kernels
from backend.job.model.operators import (
    CHUNK,
    Activation,
    AltUp,
    Attention,
    BlockScores,
    ChosenKeys,
    Dispatch,
    IndexScores,
    Linear,
    Mixing,
    Norm,
    Operator,
    Recurrence,
    Streams,
)

STREAMS = 4
"""Matrix products of experts that run in parallel: Transformer Engine's grouped GEMM starts one per expert on this many
streams (common/include/transformer_engine/gemm.h, num_streams)."""

MOVED_BACKWARD = 1.6
"""Ratio of backward to forward bytes of memory-bound kernels without a count of their own. A norm reads its input and a
gradient and writes one (6 against 4 bytes per element), a residual sum is as large, SwiGLU reads three and writes two
(10 against 6)."""

RMS_NORM_MOVED = (36, 92)
"""Forward and backward bytes per element of an RMS norm in Hugging Face's modules: to fp32, square, mean, scaled, to 16
bits, weighted. They were counted operation by operation in transformers (benchmarks/moved_bytes.py)."""

CAST_NORM_MOVED = (20, 32)
"""Forward and backward bytes per element of llm-foundry's layer norm with its casts."""

RMS_NORM_STARTED = (8, 14)
"""Operations of an RMS norm in Hugging Face's modules, forward and for the gradient of its input. They were counted in
transformers (benchmarks/moved_bytes.py); likewise ROPE_STARTED."""

ROPE_STARTED = (10, 15)
"""Operations of rotary embedding in Hugging Face's modules."""

ALTUP_MOVED: Mapping[str, tuple[int, int, int, int]] = {
    "enter": (18, -8, 66, -36),
    "predict": (14, 0, 44, 0),
    "correct": (22, 8, 88, -18),
    "leave": (20, -6, 68, -34),
}
"""Bytes per element of the hidden state in the steps of AltUp, in Hugging Face's modules: per copy and beside that,
forward, then backward. They were counted with 2 and 4 copies (benchmarks/moved_bytes.py); likewise the next two."""

ALTUP_STARTED: Mapping[str, tuple[int, int, int, int]] = {
    "enter": (6, -2, 22, -13),
    "predict": (0, 5, 0, 11),
    "correct": (0, 11, 0, 24),
    "leave": (6, -1, 22, -12),
}
"""Operations of the steps of AltUp, in the same order."""

SPARSE_MOVED, SPARSE_STARTED = (12, 36), (17, 15)
"""Bytes per element and operations, forward and backward, with which Gemma 3n finds the largest inputs of an FFN's
function."""

CHANNEL_DECAY = (88, 8)
"""Bytes per channel, and operations, of the decay of each channel in fp32: what each operation of transformers 5.19
modeling_kimi_linear.py KimiLinearForgetGate reads and writes, and the reads of the kernels in fla/ops/kda/chunk_fwd.py
@bc3b101dcb71."""

QUERY_STARTED = 30
"""Operations with which Qwen4's indexer chooses the keys of one query; transformers loops over the queries of each
sequence (5.19 modeling_qwen4_exp.py Qwen4ExpTextQSAIndexer; 27 were counted in fp32, and autocast adds casts)."""

ENTRY_MOVED, PAIR_MOVED, INDEX_MOVED = (90, 157), 85, 24
"""Bytes that Megatron-Core's attention over chosen keys moves: for an entry of a head's scores, forward and backward;
for a pair of a query and a key; and for an entry of a head of the indexer (the last two forward only). They were
counted operation by operation in megatron-core 0.19.2 (benchmarks/chosen_keys.py)."""

CORE_STARTED, INDEX_STARTED = 52, 15
"""Kernels of this attention and of its indexer, a third of those of forward and backward together, without the
projections (counted there, too)."""

STARTED_BACKWARD = 1.6
"""Ratio of backward to forward operations that are bound by memory, without a count of their own. An activation and
rotary embedding have 1.5, RMS norms have 1.75."""

GROUPED_MOVED: Mapping[str, tuple[int, int]] = {"copy": (16, 32), "token": (4, 14), "function": (10, 26)}
"""Bytes of experts with one grouped product, forward and backward, beside its products: per element of a copy of the
hidden state, per element of the hidden state, and per element of a gated function's output. Copies are gathered by
expert, weighted, masked, put in order again and summed. They were counted in transformers
(integrations/moe.py grouped_mm_experts_forward, benchmarks/moved_bytes.py)."""

SINGLE_STARTED = (6, 10)
"""Operations of one expert with modules of its own, forward and backward, beside its products: masks, the gather of its
tokens, its function, and the scatter of its outputs. They were counted in DeepSeek-MoE's own code."""

LIGER_NORM_MOVED, LIGER_NORM_STARTED, LIGER_ROPE_STARTED = (4, 6), (1, 2), (1, 1)
"""Bytes per element and operations, forward and backward, of an RMS norm and of rotary embedding with Liger's kernels.

The backward kernel of a norm reads the input and the gradient of the output and writes that of the input; torch sums
its partial gradients of the weight. Queries and keys are rotated in place by one kernel (Liger ead96b61,
ops/rms_norm.py, ops/rope.py, ops/swiglu.py). LLaMA-Factory's model/model_utils/liger_kernel.py changes none of Liger's
defaults for norms, rotary embedding and FFNs.
"""

Routing = Literal["plain", "fused", "in_exchange"]
"""How Megatron routes tokens: with torch's operations, its default; with Transformer Engine's router kernels
(moe_router_fusion); or with these kernels and an exchange that sorts tokens by expert (HybridEP)."""

_DISPATCH_KERNELS: Mapping[Routing, int] = {"plain": 24, "fused": 14, "in_exchange": 6}
"""Kernels between the router's product and the experts: a third of those of forward and backward together. They were
counted operation by operation in megatron-core 0.16.1 with fused permutation (moe/router.py 27 forward,
token_dispatcher.py 20; 25 backward), less those that the two others fuse."""

_ROPE_KERNELS = 16
"""Kernels of rotary embedding with torch's operations, a third of those of forward and backward: twelve each for
queries and for keys in megatron-core's rope_utils.py (_apply_rotary_pos_emb_bshd), and about as many backward. Fused,
it is one kernel each."""

_ROW_PARALLEL = ("o", "out_proj", "down", "shared_down", "expert_down", "proj", "merge_out")
"""Projections whose input is split over TP and whose output is whole; for all others it is the reverse."""


def operator_kernels(
    operator: Operator, hidden: int, fused: bool, routing: Routing, rope_fused: bool, liger: Kernels
) -> dict[str, float]:
    """Return the fields of LayerKernels to which an operator adds, with what it adds."""
    if isinstance(operator, Linear):
        return _linear(operator, fused)
    if isinstance(operator, Attention):
        return _attention(operator, fused, rope_fused, liger.rope)
    if isinstance(operator, ChosenKeys):
        return _chosen_keys(operator)
    if isinstance(operator, IndexScores):
        return _index(operator)
    if isinstance(operator, Norm):
        return _norm(operator, hidden, fused, liger.head_norms if operator.heads else liger.norms)
    if isinstance(operator, Recurrence):
        return _recurrence(operator)
    if isinstance(operator, Mixing):
        return {
            "recurrence": operator.flops,
            "moved_split": operator.moved_bytes,
            "kernels": operator.kernels,
            "tensors": 1,
            "modules": 1,
        }
    if isinstance(operator, Activation):
        return _activation(operator, fused, liger.functions)
    if isinstance(operator, AltUp):
        return _altup(operator)
    if isinstance(operator, Streams):
        return _streams(operator)
    if isinstance(operator, BlockScores):
        return _blocks(operator)
    if isinstance(operator, Dispatch):
        return _dispatch(operator, fused, routing)
    return {}


def _attention(operator: Attention, fused: bool, rope_fused: bool, liger: bool) -> dict[str, float]:
    width = operator.heads * (operator.key_dim + operator.value_dim)
    # Rotary embedding reads and writes queries and keys.
    moved = (4 if liger or (fused and rope_fused) else 16) * (operator.heads + operator.kv_heads) * operator.key_dim
    return {
        "attention": 2.0 * width,
        "scores": operator.heads,
        "moved_split": moved,
        "kernels": (3 if rope_fused else 1 + _ROPE_KERNELS) if fused else 1,
        **({} if fused else _small(LIGER_ROPE_STARTED if liger else ROPE_STARTED)),
        "keys": operator.kv_heads * (operator.key_dim + operator.value_dim),
        "queries": width,
    }


def _chosen_keys(operator: ChosenKeys) -> dict[str, float]:
    """Return the work of attention over chosen keys in Megatron-Core."""
    rotated = 16 * (operator.heads + 1) * operator.rotary
    return {
        "square": 2.0 * operator.heads * operator.latent,
        "square_single": 2.0 * operator.heads * (operator.latent + operator.rotary),
        "square_moved": float(ENTRY_MOVED[0] * operator.heads),
        "square_moved_back": float(ENTRY_MOVED[1] * operator.heads),
        "pair_moved": float(PAIR_MOVED),
        "moved_split": rotated,
        "kernels": CORE_STARTED,
        "latent_key": float(operator.latent + operator.rotary),
    }


def _index(operator: IndexScores) -> dict[str, float]:
    """Return the work of an indexer's scores in transformers 5.19 modeling_deepseek_v32.py: the product of queries and
    keys is written, scaled, clipped and summed over the heads; copies of keys are written and read."""
    if operator.in_fp32:
        return {
            "index_single": 2.0 * operator.heads * operator.key_dim,
            "pair_moved": float(INDEX_MOVED * operator.heads),
            "kernels": INDEX_STARTED,
        }
    copied = 2 * operator.key_dim * operator.spreads_keys
    scored = operator.heads / (operator.pooled or 1)
    return {
        "index": 2.0 * scored * (operator.key_dim + 1),
        "index_moved": 2.0 * (6 * scored + copied),
        **_small((20, 0)),
    }


def _blocks(operator: BlockScores) -> dict[str, float]:
    """Return the work of scores of blocks. transformers 5.19 modeling_minimax_m3_vl.py writes the product in
    fp32, and masks and reads it; the choice of blocks is repeated for each head, joined with the causal mask, turned
    round, and becomes a mask in 16 bits, whose kernel reads two masks and writes one. The scores of compressed entries
    in fp32 are clipped, scaled, weighted and summed (modeling_deepseek_v4.py DeepseekV4IndexerScorer)."""
    scored = operator.heads / operator.block
    if operator.scores_later:
        return {"index": 2.0 * scored * operator.key_dim, "index_moved": 4.0 * 8 * scored, **_small((60, 0))}
    if not operator.masked_heads:
        return {"index": scored * operator.key_dim, "looped": QUERY_STARTED}
    return {
        "index": 2.0 * operator.heads * operator.key_dim,
        "index_moved": 4.0 * 4 * operator.heads + 12.0 * operator.masked_heads,
        **_small((25, 0)),
    }


def _activation(operator: Activation, fused: bool, liger: bool) -> dict[str, float]:
    # A fused kernel reads its input and writes its output. Modules have one kernel for the function and one for the
    # product. Liger's kernel is not counted for routed experts, whose module differs by the version of transformers.
    parts = 2 if operator.gated else 1
    is_one = fused or (liger and operator.module != "moe")
    moved = 2 * operator.width * (parts + 1 + (0 if is_one else 2 * (parts - 1)))
    kernels = 1 if is_one else parts
    if operator.clamped:
        # Two kernels clamp one half of the input each, and one joins the halves again.
        moved, kernels = moved + 8 * parts * operator.width, kernels + 3
    where = "moved_expert" if operator.module == "moe" else "moved_split"
    if operator.sparse:
        back = MOVED_BACKWARD * moved + SPARSE_MOVED[1] * operator.width
        moved += SPARSE_MOVED[0] * operator.width
        started = kernels + SPARSE_STARTED[0], STARTED_BACKWARD * kernels + SPARSE_STARTED[1]
        return {where: moved, "moved_back_split": back, **_small(started)}
    if operator.module == "moe" and operator.gated and not fused and not operator.single:
        back = MOVED_BACKWARD * moved + (GROUPED_MOVED["function"][1] - MOVED_BACKWARD * 10) * operator.width
        return {where: moved, "moved_back_expert": back, "small_kernels": kernels}
    return {where: moved, "kernels" if fused else "small_kernels": kernels}


def _altup(operator: AltUp) -> dict[str, float]:
    n = operator.copies
    each, beside, each_back, beside_back = ALTUP_MOVED[operator.step]
    started, started_beside, started_back, started_beside_back = ALTUP_STARTED[operator.step]
    return {
        "moved_whole": operator.width * (each * n + beside),
        "moved_back_whole": operator.width * (each_back * n + beside_back),
        **_small((started * n + started_beside, started_back * n + started_beside_back)),
    }


def _streams(operator: Streams) -> dict[str, float]:
    """Return the work of a step of residual streams in 16 bits: what each operation of transformers 5.19
    modeling_qwen4_exp.py reads and writes, without norms and projections."""
    if operator.step in ("collapse", "spread", "average"):
        return _connection(operator)
    n = operator.copies
    moved, started = {"mix": (12 * n + 2, 8), "add": (8 * n + 2, 2), "ngrams": (34 * n + 4, 30)}[operator.step]
    return {"moved_whole": float(moved * operator.width), **_small((started, STARTED_BACKWARD * started))}


def _connection(operator: Streams) -> dict[str, float]:
    """Return the same of hyper-connections (transformers 5.19 modeling_deepseek_v4.py, modeling_hy_v4.py). A mean casts
    the streams to fp32, norms, multiplies and sums them, and each step of its doubly stochastic matrix starts six small
    kernels."""
    n, mixes = operator.copies, operator.rounds > 0
    moved, started = {
        "collapse": (44 * n + 10, 27) if operator.norms_first else (32 * n + 10, 22),
        "spread": (12 * n + 2, 4) if mixes else (28 * n + 10, 6),
        "average": (2 * n + 2, 1),
    }[operator.step]
    started += 6 * operator.rounds * (operator.step == "collapse")
    return {"moved_whole": float(moved * operator.width), **_small((started, STARTED_BACKWARD * started))}


def _dispatch(operator: Dispatch, fused: bool, routing: Routing) -> dict[str, float]:
    """Copies are sorted by rank before the exchange and by expert after it, then both are undone.

    These are four reads and writes of every copy, or one if the exchange sorts. The router's softmax, top-k and counts
    are in fp32.
    """
    sums_of_operator = {
        "moved_expert": (4.0 if routing == "in_exchange" else 16.0) * operator.top_k * operator.hidden,
        "moved_whole": 24.0 * operator.experts,
        "dispatched": operator.top_k * operator.hidden,
        "hidden": operator.hidden,
        "kernels" if fused else "small_kernels": _DISPATCH_KERNELS[routing] if fused else 30,
    }
    if not fused and not operator.single:
        copies, whole = operator.top_k * operator.hidden, operator.hidden
        (copy, copy_back), (token, token_back) = GROUPED_MOVED["copy"], GROUPED_MOVED["token"]
        router = 24.0 * operator.experts
        sums_of_operator |= {
            "moved_expert": float(copy * copies),
            "moved_back_expert": float(copy_back * copies),
            "moved_whole": router + token * whole,
            "moved_back_whole": MOVED_BACKWARD * router + token_back * whole,
        }
    if operator.single and not fused:
        forward, backward = (operator.experts * each for each in SINGLE_STARTED)
        sums_of_operator |= _small((30 + forward, STARTED_BACKWARD * 30 + backward))
        sums_of_operator["modules"] = operator.fetched
    return sums_of_operator


def _recurrence(operator: Recurrence) -> dict[str, float]:
    """Return the work of linear attention with the kernels of flash-linear-attention.

    The convolution reads and writes its channels. Then come two norms, a sum of decays, the products of keys, their
    triangular inverse, the chunks' weights, states and outputs (fla/ops/gated_delta_rule/chunk.py): each reads what the
    one before wrote.
    """
    key, value = operator.key_dim, operator.value_dim
    decays = CHANNEL_DECAY if operator.decays_channels else (0, 0)
    per_head = decays[0] * key + 10.0 * key + 6 * CHUNK + 4 * (key + value) + 2 * (2 * key + 2 * value)
    per_head += 4 * key * value / CHUNK + 2 * (2 * key + 2 * value)
    return {
        "recurrence": operator.flops,
        "moved_split": 4.0 * operator.channels + operator.value_heads * per_head,
        "kernels": 12 + decays[1],
        "tensors": 3,
        "modules": 1,
    }


def _norm(norm: Norm, hidden: int, fused: bool, liger: bool) -> dict[str, float]:
    """Return the work of a norm; a norm of the residual stream includes the sum that updates the stream."""
    if fused or norm.layer_norm:
        moved, back, started = 4.0, MOVED_BACKWARD * 4, (1.0, 1.0)
    elif liger:
        (moved, back), started = LIGER_NORM_MOVED, LIGER_NORM_STARTED
    else:
        moved, back = CAST_NORM_MOVED if norm.cast else RMS_NORM_MOVED
        started = RMS_NORM_STARTED
    if norm.heads:
        # One norm each for queries and keys.
        sums_of_operator = {"moved_split": moved * norm.width, "moved_back_split": back * norm.width}
        sums_of_operator |= {"kernels": 2} if fused else _small((2 * started[0], 2 * started[1]))
        return sums_of_operator | {"tensors": 2, "modules": 2}
    sums = norm.width == hidden
    residual = 6 * sums
    return {
        "moved_whole": (moved + residual) * norm.width,
        "moved_back_whole": (back + MOVED_BACKWARD * residual) * norm.width,
        **({"kernels": 2} if fused else _small((started[0] + sums, started[1] + sums))),
        "tensors": max(1, norm.parameters // norm.width),
        "modules": 1,
    }


def _small(started: tuple[float, float]) -> dict[str, float]:
    return {"small_kernels": started[0], "small_kernels_back": started[1]}


def _linear(linear: Linear, fused: bool) -> dict[str, float]:
    size = float(linear.inputs * linear.outputs)
    if linear.untrained:
        return {"untrained": size, "modules": 1, "tensors": 1, **_small((1, 0))}
    where = linear.share
    tensors = 1 + bool(linear.bias or linear.whole_bias)
    sums_of_operator = {
        f"gemm_{where}": size * linear.active,
        f"weights_{where}": size * linear.copies,
        "kernels": 1 if fused else linear.parts,
        "tensors": tensors,
    }
    if where == "expert":
        sums_of_operator["operands_expert"] = (linear.inputs + linear.outputs) * linear.active
        sums_of_operator |= {"tensors": 0, "tensors_expert": tensors * linear.copies, "modules": 1}
        if not fused and linear.single:
            return sums_of_operator | {"kernels": linear.copies * linear.parts}
        if not fused:
            # transformers' integrations/moe.py has one grouped product of all experts with their gates. It gathers a
            # bias for each copy and adds it.
            biased = bool(linear.bias)
            moved = 10.0 * linear.outputs * linear.active * biased
            looped = {"loop_kernels": linear.copies - 1.0}
            return sums_of_operator | looped | {"kernels": 1 + 2 * biased, "moved_expert": moved}
        sums_of_operator |= {"kernels": 0, "kernels_expert": linear.copies / STREAMS}
        if linear.bias and linear.name in _ROW_PARALLEL:
            # megatron-core's experts.py weights, adds, joins and casts the bias of the output by expert, in fp32.
            sums_of_operator["kernels_expert"] += 2 * linear.copies
            sums_of_operator |= {"kernels": 2, "moved_expert": 28.0 * linear.outputs * linear.active}
        return sums_of_operator
    sums_of_operator["modules"] = linear.parts
    if linear.name not in ("output", "router", "patch") or linear.modules:
        sums_of_operator |= {f"packed_{where}": size, "packed": linear.parts}
    if where == "whole":
        sums_of_operator["operands_full"] = linear.inputs + linear.outputs
    elif linear.name in _ROW_PARALLEL:
        sums_of_operator |= {"operands_split": linear.inputs, "operands_full": linear.outputs}
        sums_of_operator |= {"outputs_gathered": 1, "gathered": linear.outputs}
    else:
        sums_of_operator |= {"operands_split": linear.outputs, "operands_full": linear.inputs}
    return sums_of_operator
