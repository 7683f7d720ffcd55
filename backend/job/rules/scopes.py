"""The engines that a rule applies to. The name of a scope means the same in every file of rules.

Two environments (`llamafactory`, `swift`) have two kinds of engines each:

    llamafactory = llamafactory_trainer + mcore_adapter
    swift        = swift_trainer        + swift_megatron
    hugging_face = llamafactory_trainer + swift_trainer
    megatron     = mcore_adapter        + swift_megatron
"""

from backend.job.traits import EngineTraits


def everywhere(traits: EngineTraits) -> bool:
    """All engines."""
    return True


def hugging_face(traits: EngineTraits) -> bool:
    """The engines of Hugging Face's trainer, in both environments: DDP, ZeRO and FSDP."""
    return not traits.is_megatron


def megatron(traits: EngineTraits) -> bool:
    """The Megatron-Core engines of both environments."""
    return traits.is_megatron


def llamafactory(traits: EngineTraits) -> bool:
    """All engines of LLaMA-Factory's environment, Megatron-Core included."""
    return traits.is_llamafactory


def llamafactory_trainer(traits: EngineTraits) -> bool:
    """LLaMA-Factory with Hugging Face's trainer."""
    return traits.is_llamafactory_trainer


def mcore_adapter(traits: EngineTraits) -> bool:
    """LLaMA-Factory with Megatron-Core."""
    return traits.is_mcore_adapter


def swift(traits: EngineTraits) -> bool:
    """All engines of ms-swift's environment, Megatron-Core included."""
    return traits.is_swift


def swift_trainer(traits: EngineTraits) -> bool:
    """ms-swift with Hugging Face's trainer."""
    return traits.is_swift_trainer


def swift_megatron(traits: EngineTraits) -> bool:
    """ms-swift with Megatron-Core."""
    return traits.is_swift_megatron


def ddp(traits: EngineTraits) -> bool:
    """Hugging Face's trainer with a whole model on every rank."""
    return hugging_face(traits) and not traits.is_deepspeed and not traits.is_fsdp


def zero3(traits: EngineTraits) -> bool:
    """DeepSpeed ZeRO-3, with and without offload."""
    return traits.is_zero3


def zero_offload(traits: EngineTraits) -> bool:
    """DeepSpeed ZeRO with offload."""
    return traits.is_deepspeed and traits.offloads != "none"


def fsdp(traits: EngineTraits) -> bool:
    """FSDP, version 1 or 2."""
    return traits.is_fsdp


def grpo(traits: EngineTraits) -> bool:
    """The engines with the stage grpo."""
    return "grpo" in traits.stages


def wrong_vision_gradients(traits: EngineTraits) -> bool:
    """The engines with model types whose vision parts need whole sequences."""
    return bool(traits.vision_needs_whole_sequences)


def wrong_deep_stack_gradients(traits: EngineTraits) -> bool:
    """The engines with model types whose deep-stack features need whole sequences."""
    return bool(traits.deep_stack_needs_whole_sequences)
