"""Which attention an engine runs with a model: a fused kernel, or one that stores the matrix of scores."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.model.shape import WIDEST_HEAD
from backend.job.presets import Gpu

UNFUSED_BACKENDS = ("unfused", "local")
"""Values of Megatron-Core's `attention_backend` that store scores."""
EAGER_IN_SWIFT = ("gemma3", "gemma3_text")
"""Types for which ms-swift's Hugging Face trainer asks for eager attention, if nobody asks for another (4.6.0
swift/model/models/gemma.py Gemma3TextLoader, Gemma3VisionLoader)."""


def is_fused(job: Job, shape: ModelShape, gpu: Gpu) -> bool:
    """Return whether attention runs as a fused kernel. FlashAttention needs a GPU with bf16."""
    return gpu.supports_bf16 and job.training.precision != "fp32" and not stores_scores(job, shape)


def stores_scores(job: Job, shape: ModelShape) -> bool:
    """Return whether the implementation of attention that the engine chooses stores its scores."""
    if job.traits.is_megatron:
        return _megatron_stores(job, shape)
    if job.traits.environment == "swift":
        return _swift_stores(job, shape)
    return _llamafactory_stores(job, shape)


def needs_unfused(shape: ModelShape) -> bool:
    """Return whether Transformer Engine has no FlashAttention for the model's heads.

    Its dot_product_attention/utils.py get_attention_backend allows heads up to 256 wide, and no sinks
    (https://github.com/NVIDIA/TransformerEngine/issues/3006: Gemma 4 with version 2.14).
    """
    return shape.widest_head > WIDEST_HEAD or shape.has_sinks


def _megatron_stores(job: Job, shape: ModelShape) -> bool:
    """Only ms-swift passes `attention_backend` on. `fused` is cuDNN's kernel."""
    backend = job.extra.get("attention_backend")
    return backend in UNFUSED_BACKENDS or (needs_unfused(shape) and backend != "fused")


def _swift_stores(job: Job, shape: ModelShape) -> bool:
    """ms-swift leaves the choice to transformers, but for EAGER_IN_SWIFT. transformers takes eager attention where a
    class has no SDPA: 5.6.0 modeling_gpt_oss.py `_supports_sdpa = False`."""
    implementation = job.extra.get("attn_impl") or ("flash_attn" if job.training.packing else None)
    if implementation is None:
        return shape.has_sinks or shape.model_type in EAGER_IN_SWIFT
    return implementation == "eager"


def _llamafactory_stores(job: Job, shape: ModelShape) -> bool:
    """LLaMA-Factory 0.9.5 model/model_utils/attention.py: gpt-oss always has a kernel of FlashAttention 3; with `auto`
    Gemma 2 has eager attention unless flash-attn is installed, which this function does not know."""
    implementation = job.extra.get("flash_attn", "auto")
    if shape.model_type == "gpt_oss":
        return False
    return implementation == "disabled" or (implementation == "auto" and shape.has_softcap)
