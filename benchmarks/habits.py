"""Properties of all published runs of a source: switches, kernels, and its way to count FLOPs.

They come from the source's own text and code, never from our error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.job.attention import AttentionKind

OLD_TE_LOSS_BYTES, OLD_TE_LOSS_MOVED = 2, (6, 4)
"""Transformer Engine's cross entropy up to 2.17, which published runs used: bytes per logit at the peak, and bytes
moved per logit in forward and backward.

Its gradient overwrites the 16-bit logits (pytorch/cross_entropy.py). In forward it reads them for the sum, and reads
and writes them for the gradient, which backward scales (pytorch/triton/cross_entropy.py).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """Properties of every run of a source."""

    overlap: bool = False
    """Gradients and parameters are communicated during computation."""
    overlap_tensor: bool = False
    gpt: bool = False
    """GPT: GELU, FFN of 4 hidden sizes, tied embeddings, and a vocabulary of 51,200 if a row has none."""
    untied: bool = False
    flash: bool = True
    fused_loss: bool = False
    """Cross entropy in place on 16-bit logits: Transformer Engine's or FlashAttention's."""
    gradient_bytes: int = 4
    whole_attention: bool = False
    """The source's TFLOP/s count the whole score matrix, not the causal half."""
    recompute_counted: bool = False
    """The source's TFLOP/s count recomputation."""
    fsdp: bool = False
    fsdp_2: bool = False
    """Its FSDP is version 2, also in rows that do not tell."""
    scattered_sends: bool = False
    """TP ranks share the messages between stages."""
    interleaved: bool = False
    """Every pipeline has an interleaved schedule; the number of chunks is not published."""
    sums_apart: bool = False
    """Separate kernels accumulate the gradients."""
    gathered_alone: bool = False
    """ZeRO-3 is DeepSpeed's of 2021 (v0.4)."""
    attention_pace: float = 1.0
    """Attention speed relative to FlashAttention 2."""
    attention: AttentionKind = "fused"
    """The kernel of attention, if it is not the usual one."""
    cudnn_on_blackwell: bool = False
    """torch's attention is cuDNN's on Blackwell."""
    fixed_lengths: bool = False
    """All micro-batches have the same length: samples are padded to it, or packed."""
    upcasts_rest: bool = False
    """QLoRA: peft's prepare_model_for_kbit_training makes fp32 of all weights that are not in 4 bits."""
    segmented: bool = False
    """torch without expandable segments, which are of torch 2.1."""
    sums_in_fp32: bool = False
    """FSDP 2 reduces gradients in fp32, so it keeps them whole and in fp32 while micro-batches accumulate (torch 2.13
    distributed/fsdp/_fully_shard/_fsdp_param.py to_accumulated_grad_if_needed)."""
    stops_early: bool = False
    """Full recompute stops when backward has what it needs (torch's checkpoint, use_reentrant=False, from 2.1 on)."""


FIRST_FLASH = (0.25 + 0.40) / (0.50 + 0.73)
"""Speed of FlashAttention relative to FlashAttention 2: 25 to 40 % and 50 to 73 % of an A100's peak, by the abstract of
https://arxiv.org/abs/2307.08691."""


# Megatron-LM of 2021 and 2022 had no fused attention. Its TP ranks shared the messages between stages (arXiv
# 2104.04473), as those of DeepSpeed's pipeline do (microsoft/DeepSpeed, runtime/pipe/engine.py, PartitionedTensor).
# All four papers train in fp16 with fp16 gradients, which its model/distributed.py accumulates (main_grad.add_).
_OLD = Habits(gpt=True, flash=False, gradient_bytes=2, whole_attention=True, scattered_sends=True, sums_apart=True)
# MPT: GELU, FFN of 4, tied, loss_fn fused_crossentropy by default (models/mpt/modeling_mpt.py); FSDP.
# scripts/train/benchmarking: FlashAttention in Triton (submit_benchmarks.py, attn_impl), checkpoints that are not
# reentrant. The tables of 2023-07 are in bf16, with torch before 2.1 and all communication in 16 bits (PURE).
_MPT = Habits(gpt=True, overlap=True, gradient_bytes=2, fsdp=True, fused_loss=True, attention_pace=FIRST_FLASH)
# The tables of 2023-10 are in amp_bf16, with torch 2.1 (sweep.sh) and gradients summed in fp32 (composer's mixed
# precision DEFAULT). Those of 2024-01, on 128 H100 and more, use FlashAttention 2 (reaper.py).
_MPT_LATER = replace(_MPT, gradient_bytes=4, stops_early=True)
_MPT_LARGE = replace(_MPT_LATER, attention_pace=1.0)

ANYONE = Habits(upcasts_rest=True, segmented=True)
"""Other sources: Megatron-LM with fused kernels and fp32 gradients; overlaps as the row's text says. QLoRA as peft's
documentation prepares it (docs/source/developer_guides/quantization.md)."""

HABITS: tuple[tuple[str, Habits], ...] = (
    ("vTrain", _OLD),
    ("Narayanan", replace(_OLD, recompute_counted=True, gathered_alone=True)),
    ("Korthikanti", _OLD),
    # Its text: data, tensor (--tp-comm-overlap) and pipeline communication overlap computation. Pipeline
    # communication can do so only in the interleaved schedule. core_r0.8.0 counts whole attention.
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
    # NVIDIA-NeMo/Automodel, examples/llm_benchmark: FSDP 2, Transformer Engine's modules, torch's cross entropy.
    # Its checkpoints are not reentrant (components/distributed/parallelizer.py, components/moe/parallelizer.py).
    ("NeMo AutoModel", Habits(overlap=True, fsdp_2=True, stops_early=True)),
    # NeMo 2.0: scripts/performance/helpers.py, grad_reduce_in_fp32=False; gpt/model/base.py, cross_entropy_loss_fusion.
    ("NVIDIA DGX Cloud", Habits(overlap=True, overlap_tensor=True, gradient_bytes=2, fused_loss=True)),
    ("NeMo", Habits(overlap=True, overlap_tensor=True, gradient_bytes=2, fused_loss=True)),
    ("llm-foundry", _MPT),
    # distributed/activation_checkpoint.py, before parallelisms/parallelize_llama.py: torch's checkpoint_wrapper, whose
    # checkpoints are not reentrant.
    # models/attention.py, _init_backend: "Add CuDNN on B200 w/ highest priority".
    ("torchtitan", Habits(overlap=True, fsdp=True, fsdp_2=True, stops_early=True, cudnn_on_blackwell=True)),
    # Each row has its overlaps; --cross-entropy-fusion-impl te.
    ("XTuner", Habits(fused_loss=True)),
    ("ms-swift", Habits()),
    ("nanotron", Habits()),
    # fms_fsdp/policies: gradients are reduced in bf16 (mixed_precision.py bfSixteen), checkpoints are not reentrant
    # (ac_handler.py). FSDP 1 prefetches by default.
    ("fms-fsdp", Habits(overlap=True, fsdp=True, gradient_bytes=2, stops_early=True)),
    # kempnerforge/distributed/parallel.py: FSDP 2 with reduce_dtype fp32, checkpoints that are not reentrant.
    (
        "KempnerForge",
        Habits(overlap=True, fsdp=True, fsdp_2=True, fixed_lengths=True, stops_early=True, sums_in_fp32=True),
    ),
    # vectorlm/utils/model_utils.py: checkpoints that are not reentrant. profiling/benchmark.py: samples of one length.
    ("VectorLM", Habits(fixed_lengths=True, stops_early=True)),
    # README: torch 2.0.1 and flash-attn 1.0.3 ("Flash Attention version 2 is not currently supported").
    ("LLM-Shearing", replace(ANYONE, attention_pace=FIRST_FLASH)),
    # scripts/train/OLMo3/OLMo3-7B.py: FSDP 2 with param_dtype bf16 and reduce_dtype fp32, no checkpoints.
    ("OLMo-core", Habits(overlap=True, fsdp=True, fsdp_2=True, fixed_lengths=True, sums_in_fp32=True)),
    # Its text: "H200 -> FA3, B200 -> FA4".
    ("ml-engineering", replace(ANYONE, attention="flash_3")),
    # Its own modules, loss and 4-bit weights, without peft (torchtune/modules/peft/lora.py).
    ("torchtune", Habits()),
    # finetune.py preprocess pads every sample to model_max_length.
    ("QwenLM", Habits(fixed_lengths=True)),
    # benchmarks_03_2024.md: dummy data of one length.
    ("fsdp_qlora", Habits(fixed_lengths=True)),
    # No part of its sources of 2024 calls peft's preparation (swift/llm/sft.py, tuner.py; a search of the repository).
    ("SWIFT 2.x", Habits()),
    # model/model_utils/checkpointing.py prepare_model_for_training: fp32 norms only with upcast_layernorm.
    ("LLaMA-Factory", Habits()),
    # Its own preparation for 4 bits leaves the rest in 16 (fms_acceleration_peft/framework_plugin_bnb.py).
    # Its samples have 4,096 tokens: 0.835 of them and 3,421 tokens per second (scripts/benchmarks/README.md).
    ("IBM fms-acceleration", Habits(fixed_lengths=True)),
    # trl prepares no weights in 4 bits that are sharded (trl/trainer/sft_trainer.py is_sharded_qlora).
    ("PEFT documentation", Habits()),
    # The log in its guide is of 2022-10-10, when Megatron-LM had no fused attention.
    ("accelerate documentation", Habits(flash=False, segmented=True)),
    # src/distributed/loading/peft_setup.py _peft_module_casting_to_bf16 casts embedding and output layer back.
    ("Halo", Habits(fixed_lengths=True)),
    # Its own linear layers, without peft (litgpt/lora.py).
    ("LitGPT", Habits()),
    # Its document is of 2023-09; it packs samples to one length (configs/7B_sft.py, pack_sample_into_one).
    ("InternEvo", Habits(segmented=True, fixed_lengths=True, upcasts_rest=True)),
    # Its examples pack samples (sample_packing: true).
    # With flash attention, its loader casts the embedding and the norms back to 16 bits.
    ("axolotl", Habits(fixed_lengths=True)),
)


def habits_of(row: Mapping[str, Any]) -> Habits:
    """Return the habits of a row by its source; llm-foundry's tables differ."""
    source = str(row.get("source"))
    habits = next((item for name, item in HABITS if name in source), ANYONE)
    if habits is _MPT and str(row.get("precision")).startswith("amp"):
        large = "h100" in str(row.get("hardware")) and isinstance(row.get("gpus"), int) and row["gpus"] >= 128
        return _MPT_LARGE if large else _MPT_LATER
    return habits


def attention_kind(row: Mapping[str, Any]) -> AttentionKind:
    """Return what computes the attention of a row, as the row or its source tells."""
    notes, habits = str(row.get("notes")), habits_of(row)
    if not habits.flash or "eager attention" in notes:
        return "scores"
    if "FlashAttention 3" in notes or "FlashAttention 4" in notes:
        return "flash_3"
    if "attention of Transformer Engine" in notes or (habits.cudnn_on_blackwell and "B200" in str(row.get("hardware"))):
        return "cudnn"
    return habits.attention


def says_packing(row: Mapping[str, Any]) -> bool:
    """Return whether the row's text says that samples are packed."""
    return "packing" in " ".join(str(row.get(key)) for key in ("method", "notes", "quote")).lower()


def has_unknown_lengths(row: Mapping[str, Any]) -> bool:
    """Return whether a row of fine-tuning does not tell how long its samples are: strangers.json marks it, or samples
    are neither packed nor of one length, and their mean is not published."""
    guessed = " ".join((row.get("blind") or {}).get("guessed", ()))
    if "longest sample" in guessed:
        return True
    fine_tunes = row.get("framework") == "transformers" or any(name in row["source"] for name in _FINE_TUNERS)
    return bool(fine_tunes and not (habits_of(row).fixed_lengths or says_packing(row) or row.get("sample_tokens")))


_FINE_TUNERS = ("ms-swift", "LLaMA-Factory")
