"""What holds for all published runs of a source: switches, kernels, how it counts FLOPs.

From a source's own text and code, never from an error of ours.
"""

from dataclasses import dataclass, replace


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


# Megatron-LM of 2021 and 2022 had no fused attention, and its TP ranks shared the messages between stages (arXiv
# 2104.04473), as those of DeepSpeed's pipeline do (microsoft/DeepSpeed, runtime/pipe/engine.py, PartitionedTensor). All
# four papers train in fp16 with fp16 gradients, which its model/distributed.py adds up (main_grad.add_).
_OLD = Habits(gpt=True, flash=False, gradient_bytes=2, whole_attention=True, scattered_sends=True, sums_apart=True)
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
    ("NeMo", Habits(overlap=True, overlap_tensor=True)),
    # MPT: GELU, FFN of 4, tied, loss_fn fused_crossentropy unless told otherwise (models/mpt/modeling_mpt.py); FSDP
    # full shard, all 16-bit communication (mixed_precision PURE).
    ("llm-foundry", Habits(gpt=True, overlap=True, gradient_bytes=2, fsdp=True, fused_loss=True)),
    ("torchtitan", Habits(overlap=True, fsdp=True)),
    ("ms-swift", Habits()),
    ("nanotron", Habits()),
)
ANYONE = Habits()
"""Of sources not listed: Megatron-LM with fused kernels and fp32 gradients; overlaps as the row's text says."""


def habits_of(source: str) -> Habits:
    """Of a source by its name."""
    return next((item for name, item in HABITS if name in source), ANYONE)
