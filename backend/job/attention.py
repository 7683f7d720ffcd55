"""Which attention an engine runs with a model: a fused kernel, or one that stores the matrix of scores."""

from collections.abc import Mapping
from typing import Literal

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.model.attention_shape import WIDEST_HEAD
from backend.job.presets import Gpu

AttentionKind = Literal["fused", "flash_2", "cudnn", "flash_3", "sdpa", "math", "scores"]
"""What computes attention, for memory and for time.

- `fused`: the usual fused kernel of the modules: cuDNN's in Transformer Engine's, FlashAttention 2 in torch's;
- `flash_2`, `cudnn`, `flash_3`: that kernel, where it is not the usual one. `flash_3` is FlashAttention 3 or 4 with the
  instructions of Hopper or of Blackwell;
- `sdpa`: torch's scaled_dot_product_attention: FlashAttention 2 without a mask, the memory-efficient kernel with one
  (torch 2.13 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp can_use_flash_attention, check_for_attn_mask);
- `math`: the same where it has no FlashAttention: the math kernel, which stores scores, where query heads share keys
  without a mask, and elsewhere the memory-efficient kernel;
- `scores`: products and a softmax that stores the matrix of scores.
"""
UNFUSED_BACKENDS = ("unfused", "local")
"""Values of Megatron-Core's `attention_backend` that store scores."""
EAGER_IN_SWIFT = ("gemma3", "gemma3_text")
"""Types for which ms-swift's Hugging Face trainer asks for eager attention, if nobody asks for another (4.6.0
swift/model/models/gemma.py Gemma3TextLoader, Gemma3VisionLoader)."""
EAGER_IN_LLAMAFACTORY = ("youtu", "youtu_vl")
"""Types for which LLaMA-Factory asks for eager attention instead of SDPA (0.9.5 model/model_utils/attention.py)."""
FLASH_ATTENTION = "flash_attention_2"
"""transformers' name of FlashAttention 2."""
FLASH_ATTENTION_3 = "flash_attention_3"
"""transformers' name of FlashAttention 3."""
NO_FLASH_ATTENTION_3 = 10.0
"""The least compute capability without its kernels: those for 9.0, which it takes for later GPUs too, run on Hopper
alone (Dao-AILab/flash-attention 0251105 hopper/static_switch.h ARCH_SWITCH, hopper/setup.py `sm_90a`)."""
SINKS_KERNEL = "kernels-community/vllm-flash-attn3"
"""The kernel that LLaMA-Factory takes for gpt-oss whatever a job asks for (the same file)."""


HOPPER = 9.0
"""Compute capability of the only GPUs on which that kernel computes sinks: `S aux is currently only supported for
Hopper GPUs` (huggingface/kernels-community 40d4194f vllm-flash-attn3/flash-attn/flash_api_stable.cpp mha_fwd; builds
before its pull request 313 left the sinks out instead)."""
AMPERE = 8.0
"""The least compute capability with FlashAttention: torch's SDPA has it for `[sm80, sm121]` (torch 2.13 sdp_utils.cpp
check_flash_attention_hardware_support), and Transformer Engine leaves only unfused attention for less
(NVIDIA/TransformerEngine d0067d0 and v2.9 pytorch/attention/dot_product_attention/utils.py get_attention_backend:
`Disabling FusedAttention for compute capability < sm80`). It has products and norms for 7.0 if it is built with CUDA 12
(common/CMakeLists.txt), although its README begins its list of GPUs with Ampere."""
FUSED_WITHOUT_PADDING = 9.0
"""The least compute capability with fused attention for concatenated samples: `F16/BF16 fused attention with THD format
requires sm90 or later` (NVIDIA/TransformerEngine d0067d0 transformer_engine/common/fused_attn/fused_attn.cpp
nvte_get_fused_attn_backend_v2; version 2.9 has the same condition)."""


def attention_kind(job: Job, shape: ModelShape, gpu: Gpu) -> AttentionKind:
    """Return what computes the attention of a job on a GPU."""
    if stores_scores(job, shape):
        return "scores"
    asked = megatron_backend(job) if job.traits.is_megatron else implementation(job, shape)
    if asked == "sdpa":
        return _of_sdpa(job, gpu)
    if job.training.precision == "fp32" or not has_flash_attention(gpu):
        # Rules refuse a Hugging Face job that asks for FlashAttention on such a GPU.
        return "scores"
    if asked in _NEWEST:
        first, last = _NEWEST[asked]
        capability = HOPPER if gpu.compute_capability is None else gpu.compute_capability
        return "flash_3" if first <= capability < last else "flash_2"
    return "flash_2" if asked in ("flash_2", FLASH_ATTENTION) else "fused"


def has_flash_attention(gpu: Gpu) -> bool:
    """Return whether FlashAttention and cuDNN's attention have kernels for a GPU."""
    return gpu.supports_bf16 and (gpu.compute_capability is None or gpu.compute_capability >= AMPERE)


def takes_flash_attention(shape: ModelShape, gpu: Gpu) -> bool:
    """Return whether FlashAttention 2 has a kernel for the model's heads on this GPU, as far as is known."""
    return gpu.device != "cpu" and has_flash_attention(gpu) and shape.widest_head <= WIDEST_HEAD


def _of_sdpa(job: Job, gpu: Gpu) -> AttentionKind:
    """Return what torch's SDPA runs.

    Without a mask, transformers asks SDPA for shared keys (5.6.0 integrations/sdpa_attention.py use_gqa_in_sdpa). Of
    torch's kernels, FlashAttention and the math kernel take them (2.13 nn/functional.py scaled_dot_product_attention,
    `enable_gqa`; pull request 191085 adds the memory-efficient one). FlashAttention needs 16 bits.
    """
    if has_flash_attention(gpu) and job.training.precision != "fp32":
        return "sdpa"
    return "sdpa" if masks_packs(job) else "math"


def stores_scores(job: Job, shape: ModelShape) -> bool:
    """Return whether the implementation of attention that the engine chooses stores its scores."""
    if not job.traits.is_megatron:
        return implementation(job, shape) == "eager"
    backend = megatron_backend(job)
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


def megatron_backend(job: Job) -> str:
    """Return the attention that Megatron-Core is asked for. mcore_adapter has no such key, and Megatron-Core's default
    is `auto` (0.16.1 transformer/transformer_config.py attention_backend)."""
    return swift_backend(job) if job.traits.is_swift else "auto"


def may_run_flash_attn(job: Job, model_type: str) -> bool:
    """Return whether the job runs the package flash-attn's FlashAttention 2 on nodes that have it.

    ms-swift's `flash_3` and `flash_4` hide it from Transformer Engine (4.6.0 megatron_args.py _init_attention_backend).
    """
    if job.traits.is_megatron:
        return megatron_backend(job) in ("auto", *_MEGATRON_FLASH_ATTENTION)
    return needs_flash_attn(job) or takes_flash_attention_if_installed(job, model_type)


def asks_for_flash_attention_3(job: Job) -> bool:
    """Return whether LLaMA-Factory's job asks for FlashAttention 3, which main runs if the nodes have it (ff6d4d12e
    model/model_utils/attention.py)."""
    return job.traits.is_llamafactory_trainer and asked_of_llamafactory(job) == FLASH_ATTENTION_3


def needs_flash_attn(job: Job) -> bool:
    """Return whether the job asks for FlashAttention 2. With `flash`, Megatron-Core allows no other kernel (0.16.1
    models/common/language_module/language_module.py _set_attention_backend)."""
    if job.traits.is_megatron:
        return megatron_backend(job) in _MEGATRON_FLASH_ATTENTION
    asked = asked_of_swift(job) if job.traits.is_swift else asked_of_llamafactory(job)
    return asked == FLASH_ATTENTION


def implementation(job: Job, shape: ModelShape) -> str:
    """Return transformers' name of the attention that a Hugging Face engine runs."""
    return of_swift(job, shape) if job.traits.is_swift else of_llamafactory(job, shape)


def of_swift(job: Job, shape: ModelShape) -> str:
    """Return the attention that ms-swift's Hugging Face trainer runs (4.6.0 model/utils.py AttnImpl)."""
    return asked_of_swift(job) or ("eager" if shape.model_type in EAGER_IN_SWIFT else _default(shape))


def of_llamafactory(job: Job, shape: ModelShape) -> str:
    """Return the attention that LLaMA-Factory runs (0.9.5 model/model_utils/attention.py).

    It is `eager` for Gemma 2 if the job asks for none. If flash-attn is installed, which a job does not say, it is
    FlashAttention 2 (takes_flash_attention_if_installed).
    """
    asked = asked_of_llamafactory(job)
    if shape.model_type == "gpt_oss":
        return SINKS_KERNEL
    if shape.model_type == "gemma2" and asked is None:
        return "eager"
    if shape.model_type in EAGER_IN_LLAMAFACTORY and asked in (None, "sdpa"):
        return "eager"
    return asked or _default(shape)


def takes_flash_attention_if_installed(job: Job, model_type: str) -> bool:
    """Return whether LLaMA-Factory runs FlashAttention 2 on nodes that have flash-attn, and something else on others
    (0.9.5 model/model_utils/attention.py)."""
    asked = asked_of_llamafactory(job)
    is_chosen = asked == FLASH_ATTENTION or (asked is None and model_type == "gemma2")
    return job.traits.is_llamafactory_trainer and is_chosen


def masks_packs(job: Job) -> bool:
    """Return whether LLaMA-Factory gives every packed sequence a mask of all pairs of its tokens.

    With neat_packing it does so unless FlashAttention 2 runs (0.9.5 data/collator.py
    SFTDataCollatorWith4DAttentionMask). SDPA then computes the whole square.
    """
    is_packed = job.training.stage == "sft" and bool(job.extra.get("neat_packing"))
    return job.traits.is_llamafactory_trainer and is_packed and asked_of_llamafactory(job) != FLASH_ATTENTION


def asked_of_swift(job: Job) -> str | None:
    """Return the attention that a job asks ms-swift's Hugging Face trainer for; None if it asks for none. Packing asks
    for one (engines/swift_trainer.py)."""
    value = job.extra.get("attn_impl") or ("flash_attn" if job.training.packing else None)
    return _NAMES.get(str(value), str(value)) if value else None


def asked_of_llamafactory(job: Job) -> str | None:
    """Return the attention that a job asks LLaMA-Factory for; None if it asks for none."""
    value = job.extra.get("flash_attn")
    return _NAMES.get(str(value), str(value)) if value and value != "auto" else None


_NAMES = {
    "disabled": "eager",
    "fa2": FLASH_ATTENTION,
    "fa3": FLASH_ATTENTION_3,
    "flash_attn": FLASH_ATTENTION,
}
"""The engines' words for transformers' names, if they differ."""


_MEGATRON_FLASH_ATTENTION = ("flash", "flash_2")
"""Values of ms-swift's `attention_backend` that take the package flash-attn."""


_NEWEST: Mapping[str, tuple[float, float]] = {
    "flash_3": (HOPPER, NO_FLASH_ATTENTION_3),
    "flash_4": (HOPPER, 12.0),
    FLASH_ATTENTION_3: (HOPPER, NO_FLASH_ATTENTION_3),
    "flash_attention_4": (HOPPER, 12.0),
    SINKS_KERNEL: (HOPPER, NO_FLASH_ATTENTION_3),
}
"""The engines' names of FlashAttention 3 and 4, with the first compute capability with fast kernels and the first
without them. Elsewhere both have kernels with the instructions of Ampere, which are those of FlashAttention 2
(Dao-AILab/flash-attention 0251105 hopper/setup.py `_sm80.cu`; flash_attn/cute/interface.py: `SM80/SM120: uses SM80
MMA`)."""


def _default(shape: ModelShape) -> str:
    """Return what transformers takes if nobody asks. No class with sinks has SDPA (5.6.0 modeling_gpt_oss.py and 5.19
    modeling_granite_swa.py, `_supports_sdpa = False`)."""
    return "eager" if shape.has_sinks else "sdpa"
