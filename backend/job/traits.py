"""Facts of each training engine, as one frozen record per engine.

memory_traits.py has the facts of its memory. No other file has facts of engines.

Sources are files of the versions in pyproject.toml (LLaMA-Factory 0.9.5), of mcore_adapter
(https://github.com/alibaba/ROLL, mcore_adapter/src/mcore_adapter), megatron-core 0.16.1 and ms-swift 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from backend.job.megatron_model_types import (
    MCA_MODEL_TYPES,
    MCA_WRONG_VISION,
    SWIFT_CUT_DEEP_STACK,
    SWIFT_MODEL_TYPES,
    SWIFT_OTHER_NAMES,
)
from backend.job.memory_traits import (
    DDP_MEMORY,
    FSDP_MEMORY,
    MCA_MEMORY,
    SWIFT_DDP_MEMORY,
    SWIFT_MEGATRON_MEMORY,
    ZERO2_MEMORY,
    ZERO3_MEMORY,
    MemoryTraits,
    Offload,
)

EngineName = Literal[
    "llamafactory-megatron",
    "llamafactory-ddp",
    "llamafactory-zero2",
    "llamafactory-zero2-offload",
    "llamafactory-zero3",
    "llamafactory-zero3-offload",
    "llamafactory-fsdp",
    "swift-megatron",
    "swift-ddp",
    "swift-zero2",
    "swift-zero2-offload",
    "swift-zero3",
    "swift-zero3-offload",
    "swift-fsdp",
]
Stage = Literal["pt", "sft", "rm", "dpo", "kto", "grpo"]
Method = Literal["full", "lora", "qlora", "partial"]
Padding = Literal["micro_batch", "step", "nothing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTraits:
    """Facts of one engine for legality, estimates and the page."""

    engine: str
    environment: Literal["llamafactory", "swift"]
    """The key of cluster.environments that runs it."""
    is_megatron: bool
    stages: tuple[Stage, ...]
    methods: tuple[Method, ...]
    """The first is the fallback."""
    model_types: frozenset[str] | None = None
    """Hugging Face model types that it accepts, in the supported version; None: all that transformers knows."""
    deep_stack_frozen_with: Literal["tower", "projector", "nothing"] = "tower"
    """The freeze option that also freezes Qwen3-VL's deep-stack mergers."""
    freezes_in_pretraining: bool = True
    """Whether freeze_* has an effect in stage pt."""
    vision_needs_whole_sequences: frozenset[str] = frozenset()
    """Model types whose vision parts get wrong gradients if TP or CP is more than 1."""
    deep_stack_needs_whole_sequences: frozenset[str] = frozenset()
    """Model types whose deep-stack features get 1/TP of their gradient under sequence parallel."""
    zero_stage: Literal[0, 2, 3] = 0
    """Stage of DeepSpeed ZeRO; 0: not DeepSpeed."""
    is_fsdp: bool = False
    fsdp_versions: tuple[int, ...] = (1, 2)
    preference_losses: tuple[str, ...] = ("sigmoid", "hinge", "ipo", "orpo", "simpo")
    """Losses that DPO can minimise."""
    memory: MemoryTraits | None = None
    """Memory traits; None if its memory is not modelled."""
    overlaps: bool = True
    """Whether data-parallel communication overlaps computation on a Hugging Face engine; on Megatron the job decides.
    LLaMA-Factory's examples/deepspeed/*.json set overlap_comm false."""

    pads: Padding = "micro_batch"
    """Scope of padding: sequences are padded to the longest in it. step: all micro-batches of a pipeline's step, and to
    cutoff_len with EP > 1 (mcore_adapter trainer.py _get_step_iterator_and_seq_length, LLaMA-Factory
    train/mca/workflow.py pad_to_max). nothing: sequences are concatenated (ms-swift megatron_args.py padding_free),
    unless the job says otherwise (batch.padding)."""

    last_step: Literal["kept", "dropped_each_epoch", "dropped_at_the_end"] = "kept"
    """Treatment of samples that do not fill a global batch. transformers 5.6.0 trainer.py set_initial_training_values;
    mcore_adapter trainer.py _prepare_train_loop; ms-swift megatron_args.py init_iters."""

    @property
    def is_llamafactory(self) -> bool:
        """Return whether it runs in LLaMA-Factory's environment."""
        return self.environment == "llamafactory"

    @property
    def is_swift(self) -> bool:
        """Return whether it runs in ms-swift's environment."""
        return self.environment == "swift"

    @property
    def is_llamafactory_trainer(self) -> bool:
        """Return whether it is LLaMA-Factory with Hugging Face's trainer."""
        return self.is_llamafactory and not self.is_megatron

    @property
    def is_mcore_adapter(self) -> bool:
        """Return whether it is LLaMA-Factory with Megatron-Core."""
        return self.is_llamafactory and self.is_megatron

    @property
    def is_swift_trainer(self) -> bool:
        """Return whether it is ms-swift with Hugging Face's trainer."""
        return self.is_swift and not self.is_megatron

    @property
    def is_swift_megatron(self) -> bool:
        """Return whether it is ms-swift with Megatron-Core."""
        return self.is_swift and self.is_megatron

    @property
    def is_deepspeed(self) -> bool:
        """Return whether it is DeepSpeed ZeRO, of any stage."""
        return self.zero_stage > 0

    @property
    def is_zero3(self) -> bool:
        """Return whether it is DeepSpeed ZeRO-3, with or without offload."""
        return self.zero_stage == 3

    @property
    def offloads(self) -> Offload:
        """What is always in host memory."""
        return self.memory.offloads if self.memory else "none"


_MEGATRON = EngineTraits(
    engine="llamafactory-megatron",
    environment="llamafactory",
    is_megatron=True,
    stages=("pt", "sft", "dpo"),
    methods=("full",),
    model_types=MCA_MODEL_TYPES,
    # train/mca/workflow.py _freeze_model_parameters: no prefix matches deepstack_merger_list, and pt never calls it.
    deep_stack_frozen_with="nothing",
    freezes_in_pretraining=False,
    vision_needs_whole_sequences=MCA_WRONG_VISION,
    preference_losses=("sigmoid", "orpo"),
    memory=MCA_MEMORY,
    pads="step",
    last_step="dropped_each_epoch",
)
_HUGGING_FACE = EngineTraits(
    engine="llamafactory-ddp",
    environment="llamafactory",
    is_megatron=False,
    stages=("pt", "sft", "rm", "dpo", "kto"),
    methods=("full", "lora", "qlora", "partial"),
    memory=DDP_MEMORY,
)
# transformers does not shard a quantised model under ZeRO-3 (5.6.0 modeling_utils.py needs_zero3_init): every rank
# would hold all of it.
_NO_QLORA: tuple[Method, ...] = ("full", "lora", "partial")
_ZERO2 = replace(_HUGGING_FACE, engine="llamafactory-zero2", overlaps=False, zero_stage=2, memory=ZERO2_MEMORY)
_ZERO3 = replace(
    _HUGGING_FACE, engine="llamafactory-zero3", overlaps=False, methods=_NO_QLORA, zero_stage=3, memory=ZERO3_MEMORY
)

_SWIFT_TRAINER = replace(
    _HUGGING_FACE,
    engine="swift-ddp",
    environment="swift",
    stages=("pt", "sft", "rm", "dpo", "kto", "grpo"),
    methods=("full", "lora", "qlora"),
    # swift/model/model_arch.py counts visual.deepstack_merger_list among the aligner's modules.
    deep_stack_frozen_with="projector",
    memory=SWIFT_DDP_MEMORY,
)
_SWIFT_ZERO2 = replace(_SWIFT_TRAINER, engine="swift-zero2", overlaps=False, zero_stage=2, memory=ZERO2_MEMORY)
_SWIFT_ZERO3 = replace(
    _SWIFT_TRAINER,
    engine="swift-zero3",
    overlaps=False,
    methods=("full", "lora"),
    zero_stage=3,
    memory=ZERO3_MEMORY,
)

TRAITS: Mapping[str, EngineTraits] = {
    traits.engine: traits
    for traits in (
        _MEGATRON,
        _HUGGING_FACE,
        _ZERO2,
        replace(
            _ZERO2,
            engine="llamafactory-zero2-offload",
            overlaps=False,
            memory=replace(ZERO2_MEMORY, offloads="optimizer"),
        ),
        _ZERO3,
        replace(_ZERO3, engine="llamafactory-zero3-offload", memory=replace(ZERO3_MEMORY, offloads="everything")),
        replace(
            _HUGGING_FACE,
            engine="llamafactory-fsdp",
            # A reward model dies: version 2 looks for `model` in the value head's wrapper (accelerate 1.11.0
            # utils/fsdp_utils.py), and version 1 calls the embedding while its weights are sharded.
            stages=("pt", "sft", "dpo", "kto"),
            is_fsdp=True,
            memory=FSDP_MEMORY,
        ),
        replace(
            _MEGATRON,
            engine="swift-megatron",
            environment="swift",
            # swift/megatron/arguments/megatron_args.py has grpo too, but only with vLLM (`use_vllm must be True for
            # Megatron GRPO`), which needs GPUs: not yet. gkd needs a second model.
            stages=("pt", "sft", "rm", "dpo", "kto"),
            methods=("full", "lora"),
            model_types=SWIFT_MODEL_TYPES | SWIFT_OTHER_NAMES,
            # mcore-bridge counts visual.deepstack_merger_list among the aligner's modules.
            deep_stack_frozen_with="projector",
            freezes_in_pretraining=True,
            vision_needs_whole_sequences=frozenset(),
            deep_stack_needs_whole_sequences=SWIFT_CUT_DEEP_STACK,
            # Its trainer uses trl's loss functions, which have neither orpo nor simpo.
            preference_losses=("sigmoid", "hinge", "ipo"),
            memory=SWIFT_MEGATRON_MEMORY,
            pads="nothing",
            last_step="dropped_at_the_end",
        ),
        _SWIFT_TRAINER,
        _SWIFT_ZERO2,
        replace(_SWIFT_ZERO2, engine="swift-zero2-offload", memory=replace(ZERO2_MEMORY, offloads="optimizer")),
        _SWIFT_ZERO3,
        replace(_SWIFT_ZERO3, engine="swift-zero3-offload", memory=replace(ZERO3_MEMORY, offloads="everything")),
        replace(
            _SWIFT_TRAINER,
            engine="swift-fsdp",
            # As with LLaMA-Factory, QLoRA fails under FSDP 2 (accelerate utils/fsdp_utils.py _infer_parameter_dtype).
            methods=("full", "lora"),
            # GRPO's generation in inference mode ends FSDP 2's next forward pass: "Inplace update to inference tensor
            # outside InferenceMode is not allowed" (torch 2.13, ms-swift 4.6.0; seen on two sharded CPU ranks).
            stages=("pt", "sft", "dpo", "kto"),
            is_fsdp=True,
            # swift/config/fsdp2.json is its only configuration (arguments/sft_args.py _init_fsdp).
            fsdp_versions=(2,),
            memory=FSDP_MEMORY,
        ),
    )
}


def sibling(traits: EngineTraits, sharding: str) -> str:
    """Return an engine of the same environment: `ddp`, `zero2`, ..., `megatron`. Both environments have all of them."""
    return f"{traits.environment}-{sharding}"
