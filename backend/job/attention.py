"""Which attention an engine runs with a model: a fused kernel, or one that stores the matrix of scores."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.model.attention_shape import WIDEST_HEAD
from backend.job.presets import Gpu

UNFUSED_BACKENDS = ("unfused", "local")
"""Values of Megatron-Core's `attention_backend` that store scores."""
EAGER_IN_SWIFT = ("gemma3", "gemma3_text")
"""Types for which ms-swift's Hugging Face trainer asks for eager attention, if nobody asks for another (4.6.0
swift/model/models/gemma.py Gemma3TextLoader, Gemma3VisionLoader)."""
EAGER_IN_LLAMAFACTORY = ("youtu", "youtu_vl")
"""Types for which LLaMA-Factory asks for eager attention instead of SDPA (0.9.5 model/model_utils/attention.py)."""
SINKS_KERNEL = "kernels-community/vllm-flash-attn3"
"""The kernel that LLaMA-Factory takes for gpt-oss whatever a job asks for (the same file)."""


def is_fused(job: Job, shape: ModelShape, gpu: Gpu) -> bool:
    """Return whether attention runs as a fused kernel. FlashAttention needs a GPU with bf16."""
    return gpu.supports_bf16 and job.training.precision != "fp32" and not stores_scores(job, shape)


def stores_scores(job: Job, shape: ModelShape) -> bool:
    """Return whether the implementation of attention that the engine chooses stores its scores."""
    if not job.traits.is_megatron:
        return implementation(job, shape) == "eager"
    # mcore_adapter has no such key.
    backend = swift_backend(job) if job.traits.environment == "swift" else "flash"
    return backend in UNFUSED_BACKENDS or (needs_unfused(shape) and backend != "fused")


def needs_unfused(shape: ModelShape) -> bool:
    """Return whether Transformer Engine has no FlashAttention for the model's heads.

    Its dot_product_attention/utils.py get_attention_backend allows heads up to 256 wide, and no sinks
    (https://github.com/NVIDIA/TransformerEngine/issues/3006: Gemma 4 with version 2.14).
    """
    return shape.widest_head > WIDEST_HEAD or shape.has_sinks


def swift_backend(job: Job) -> str:
    """Return the attention that ms-swift asks Megatron-Core for (4.6.0 megatron_args.py, default `flash`)."""
    return str(job.extra.get("attention_backend") or "flash")


def implementation(job: Job, shape: ModelShape) -> str:
    """Return transformers' name of the attention that a Hugging Face engine runs.

    It is `eager` for Gemma 2 under LLaMA-Factory with `auto`: that engine takes FlashAttention 2 if flash-attn is
    installed, which a job does not say.
    """
    return of_swift(job, shape) if job.traits.environment == "swift" else of_llamafactory(job, shape)


def of_swift(job: Job, shape: ModelShape) -> str:
    """ms-swift 4.6.0 model/utils.py AttnImpl. Packing asks for a flash attention (engines/swift_trainer.py)."""
    asked = job.extra.get("attn_impl") or ("flash_attn" if job.training.packing else None)
    if asked is None:
        return "eager" if shape.model_type in EAGER_IN_SWIFT else _default(shape)
    return "flash_attention_2" if asked == "flash_attn" else str(asked)


def of_llamafactory(job: Job, shape: ModelShape) -> str:
    """LLaMA-Factory 0.9.5 model/model_utils/attention.py configure_attn_implementation."""
    asked = str(job.extra.get("flash_attn") or "auto")
    if shape.model_type == "gpt_oss":
        return SINKS_KERNEL
    if asked == "disabled" or (shape.model_type == "gemma2" and asked == "auto"):
        return "eager"
    if shape.model_type in EAGER_IN_LLAMAFACTORY and asked in ("auto", "sdpa"):
        return "eager"
    return {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "auto": _default(shape)}.get(asked, asked)


def _default(shape: ModelShape) -> str:
    """Return what transformers takes if nobody asks. No class with sinks has SDPA (5.6.0 modeling_gpt_oss.py and 5.19
    modeling_granite_swa.py, `_supports_sdpa = False`)."""
    return "eager" if shape.has_sinks else "sdpa"
