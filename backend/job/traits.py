"""What each training engine does differently, as one frozen record a engine: the only home of engine facts.

Sources are files of the versions named in pyproject.toml (LLaMA-Factory 0.9.5) and of mcore_adapter
(https://github.com/alibaba/ROLL, mcore_adapter/src/mcore_adapter), megatron-core 0.16.1 and ms-swift 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Stage = Literal["pt", "sft", "dpo"]
Method = Literal["full", "lora", "qlora", "partial"]

# extras/constants.py MCA_SUPPORTED_MODELS of LLaMA-Factory 0.9.5
MCA_MODEL_TYPES = frozenset(
    {
        "deepseek_v3",
        "glm4_moe",
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5",
        "qwen3_5_moe",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTraits:
    """How an engine holds parameters, gradients and logits on a GPU in mixed precision. Bytes are per parameter."""

    weight_bytes: float
    """A trainable weight."""
    gradient_bytes: float
    """Its accumulated gradient."""
    bucket_bytes: float = 0.0
    """Communication buckets that stay allocated beside the gradients (torch DDP without gradient_as_bucket_view)."""
    autocast_bytes: float = 0.0
    """Low-precision copies that autocast keeps until the end of a forward pass."""
    optimizer_bytes: float = 8.0
    """Adam's two moments, and the fp32 master copy where the weight itself is not fp32."""
    cached_weight_gradients: bool = False
    """Transformer Engine keeps one dummy gradient per weight shape (gradient_accumulation_fusion)."""
    logits_forward_bytes: float
    """Per token and vocabulary entry at the peak of the loss in forward."""
    logits_backward_bytes: float
    """The same in backward."""
    vocabulary_padding: int = 1
    """The vocabulary is padded to a multiple of this times TP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTraits:
    """The facts of one engine that legality, estimates and the page depend on."""

    engine: str
    environment: Literal["llamafactory", "swift"]
    """Which of cluster.environments runs it."""
    is_megatron: bool
    stages: tuple[Stage, ...]
    methods: tuple[Method, ...]
    """The first is the one to fall back to."""
    model_types: frozenset[str] | None = None
    """Hugging Face model types it accepts; None: whatever transformers knows."""
    deep_stack_frozen_with_tower: bool = True
    """Whether freezing the vision tower also freezes Qwen3-VL's deep-stack mergers."""
    freezes_in_pretraining: bool = True
    """Whether freeze_* has an effect in stage pt."""
    memory: MemoryTraits | None = None
    """None: its memory is not modelled."""


MEGATRON_LM_MEMORY = MemoryTraits(
    weight_bytes=2,
    gradient_bytes=4,
    optimizer_bytes=12,
    cached_weight_gradients=True,
    logits_forward_bytes=6,
    logits_backward_bytes=6,
    vocabulary_padding=128,
)
"""Megatron-LM's own training script with Transformer Engine and native cross entropy: what published runs used."""

# mcore_adapter never sets gradient_accumulation_fusion, whose default in megatron-core is False.
_MCA_MEMORY = replace(MEGATRON_LM_MEMORY, cached_weight_gradients=False, vocabulary_padding=1)

# model/adapter.py upcasts trainable parameters to fp32 unless pure_bf16 or ZeRO-3; DDP keeps its buckets beside the
# gradients. Logits: fp32 log-softmax 4, the gradient of nll 4 and of its input 4; in forward bf16 2, fp32 4, fp32 4.
_DDP_MEMORY = MemoryTraits(
    weight_bytes=4,
    gradient_bytes=4,
    bucket_bytes=4,
    autocast_bytes=2,
    optimizer_bytes=8,
    logits_forward_bytes=10,
    logits_backward_bytes=12,
)

_MEGATRON = EngineTraits(
    engine="llamafactory-megatron",
    environment="llamafactory",
    is_megatron=True,
    stages=("pt", "sft", "dpo"),
    methods=("full",),
    model_types=MCA_MODEL_TYPES,
    # train/mca/workflow.py _freeze_model_parameters: no prefix matches deepstack_merger_list, and pt never calls it.
    deep_stack_frozen_with_tower=False,
    freezes_in_pretraining=False,
    memory=_MCA_MEMORY,
)
_HUGGING_FACE = EngineTraits(
    engine="llamafactory-ddp",
    environment="llamafactory",
    is_megatron=False,
    stages=("pt", "sft", "dpo"),
    methods=("full", "lora", "qlora", "partial"),
    memory=_DDP_MEMORY,
)
# DeepSpeed ZeRO-3 and FSDP shard parameters, which bitsandbytes' 4-bit weights only survive under FSDP.
_NO_QLORA: tuple[Method, ...] = ("full", "lora", "partial")

TRAITS: Mapping[str, EngineTraits] = {
    traits.engine: traits
    for traits in (
        _MEGATRON,
        _HUGGING_FACE,
        replace(_HUGGING_FACE, engine="llamafactory-zero2", memory=None),
        replace(_HUGGING_FACE, engine="llamafactory-zero2-offload", memory=None),
        replace(_HUGGING_FACE, engine="llamafactory-zero3", methods=_NO_QLORA, memory=None),
        replace(_HUGGING_FACE, engine="llamafactory-zero3-offload", methods=_NO_QLORA, memory=None),
        replace(_HUGGING_FACE, engine="llamafactory-fsdp", memory=None),
        replace(
            _MEGATRON,
            engine="swift-megatron",
            environment="swift",
            methods=("full", "lora"),
            model_types=None,
            deep_stack_frozen_with_tower=True,
            freezes_in_pretraining=True,
            memory=None,
        ),
    )
}
