"""What holds for all published runs of a source: switches, kernels, how it counts FLOPs.

From a source's own text and code, never from an error of ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """What holds for every run of a source."""

    overlap: bool = False
    """Gradients and parameters travel beside computation."""
    overlap_tensor: bool = False
    gpt: bool = False
    """GPT: GELU, FFN of 4 hidden sizes, tied embeddings, 51,200 entries of vocabulary where a row does not tell."""
    untied: bool = False
    flash: bool = True
    fused_loss: bool = False
    """A cross entropy in place on the 16-bit logits: Transformer Engine's, FlashAttention's."""
    gradient_bytes: int = 4
    whole_attention: bool = False
    """Its TFLOP/s count the whole score matrix, not the causal half."""
    recompute_counted: bool = False
    """Its TFLOP/s count what is recomputed."""
    fsdp: bool = False
    scattered_sends: bool = False
    """TP ranks share the messages between stages."""
    interleaved: bool = False
    """Interleaved schedule in every pipeline, chunks not published."""
    sums_apart: bool = False
    """Gradients are accumulated by kernels of their own."""
    gathered_alone: bool = False
    """Its ZeRO-3 is DeepSpeed's of 2021 (v0.4)."""
    attention_pace: float = 1.0
    """Over FlashAttention 2's."""
    stops_early: bool = False
    """Full recompute ends with what backward needs (torch's checkpoint, use_reentrant=False, from 2.1 on)."""


FIRST_FLASH = (0.25 + 0.40) / (0.50 + 0.73)
"""FlashAttention's speed over FlashAttention 2's: 25 to 40 % and 50 to 73 % of an A100's peak, the abstract of
https://arxiv.org/abs/2307.08691."""


# Megatron-LM of 2021 and 2022 had no fused attention, and its TP ranks shared the messages between stages (arXiv
# 2104.04473), as those of DeepSpeed's pipeline do (microsoft/DeepSpeed, runtime/pipe/engine.py, PartitionedTensor). All
# four papers train in fp16 with fp16 gradients, which its model/distributed.py adds up (main_grad.add_).
_OLD = Habits(gpt=True, flash=False, gradient_bytes=2, whole_attention=True, scattered_sends=True, sums_apart=True)
# MPT: GELU, FFN of 4, tied, loss_fn fused_crossentropy unless told otherwise (models/mpt/modeling_mpt.py); FSDP.
# scripts/train/benchmarking: FlashAttention in Triton (submit_benchmarks.py, attn_impl), checkpoints that are not
# reentrant; the tables of 2023-07, in bf16, with torch before 2.1 and all communication in 16 bits (PURE).
_MPT = Habits(gpt=True, overlap=True, gradient_bytes=2, fsdp=True, fused_loss=True, attention_pace=FIRST_FLASH)
# Those of 2023-10, in amp_bf16, with torch 2.1 (sweep.sh) and gradients summed in fp32 (composer's mixed precision
# DEFAULT); those of 2024-01, on 128 H100 and more, with FlashAttention 2 (reaper.py).
_MPT_LATER = replace(_MPT, gradient_bytes=4, stops_early=True)
_MPT_LARGE = replace(_MPT_LATER, attention_pace=1.0)

HABITS: tuple[tuple[str, Habits], ...] = (
    ("vTrain", _OLD),
    ("Narayanan", replace(_OLD, recompute_counted=True, gathered_alone=True)),
    ("Korthikanti", _OLD),
    # Its text: data, tensor (--tp-comm-overlap) and pipeline communication overlapped, the last of which only the
    # interleaved schedule can; core_r0.8.0 counts whole attention.
    (
        "Megatron-LM README",
        Habits(gpt=True, untied=True, overlap=True, overlap_tensor=True, whole_attention=True, interleaved=True),
    ),
    ("SimuMax", Habits(fused_loss=True)),
    # Its performance recipes: both overlaps, user buffers, gradients reduced in bf16.
    (
        "Megatron-Bridge",
        Habits(overlap=True, overlap_tensor=True, gradient_bytes=2, fused_loss=True),
    ),
    ("Megatron-MoE-ModelZoo", Habits(overlap=True, fused_loss=True)),
    # NVIDIA-NeMo/Automodel, examples/llm_benchmark: FSDP 2, Transformer Engine's modules, a cross entropy of torch's.
    ("NeMo AutoModel", Habits(overlap=True)),
    # NeMo 2.0: scripts/performance/helpers.py, grad_reduce_in_fp32=False; gpt/model/base.py, cross_entropy_loss_fusion.
    ("NVIDIA DGX Cloud", Habits(overlap=True, overlap_tensor=True, gradient_bytes=2, fused_loss=True)),
    ("NeMo", Habits(overlap=True, overlap_tensor=True, gradient_bytes=2, fused_loss=True)),
    ("llm-foundry", _MPT),
    ("torchtitan", Habits(overlap=True, fsdp=True)),
    # Its overlaps stand in each row; --cross-entropy-fusion-impl te.
    ("XTuner", Habits(fused_loss=True)),
    ("ms-swift", Habits()),
    ("nanotron", Habits()),
)
ANYONE = Habits()
"""Of sources not listed: Megatron-LM with fused kernels and fp32 gradients; overlaps as the row's text says."""


def habits_of(row: Mapping[str, Any]) -> Habits:
    """Of a row by its source; llm-foundry's tables differ."""
    source = str(row.get("source"))
    found = next((item for name, item in HABITS if name in source), ANYONE)
    if found is _MPT and str(row.get("precision")).startswith("amp"):
        large = "h100" in str(row.get("hardware")) and isinstance(row.get("gpus"), int) and row["gpus"] >= 128
        return _MPT_LARGE if large else _MPT_LATER
    return found
