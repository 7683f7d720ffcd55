"""What a Hugging Face engine trains and how, and in which precision its modules run."""

from typing import Literal

from backend.estimate.array_ops import Flag
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memory.eager_activations import EagerForm
from backend.estimate.memory.rollout import Rollout
from backend.estimate.memory.stage import Trained
from backend.estimate.model.adapters import CopiedPart
from backend.job.memory_traits import MemoryTraits


@frozen_dataclass
class Tuning:
    """What is trained, and how."""

    trained: Trained
    method: Literal["full", "lora", "qlora", "partial"] = "full"
    lora_rank: int = 8
    lora_targets: str = "all"
    adapts_by_path: bool = False
    """Whether `all` adapts every linear layer of a trained part, and not all modules of the same names (ms-swift)."""
    drops: bool = False
    """Whether adapters read their input through a dropout."""
    copied: frozenset[CopiedPart] = frozenset()
    """Parts of the model that PEFT trains whole, as copies, beside the adapters (modules_to_save)."""
    last_layers: int = 0
    """Layers that `partial` trains."""
    liger: bool = False
    """Liger's fused output layer and loss, which never store all logits."""
    fused_norms: bool = False
    """As in EagerForm, of the decoder; towers keep transformers' norms."""
    fused_head_norms: bool = False
    """As in EagerForm."""
    fused_functions: bool = False
    """As in EagerForm."""
    single_precision: bool = False
    """fp32 without autocast."""
    masks_packs: bool = False
    """Every packed sequence has a mask of all pairs of its tokens."""
    masks_padding: Flag = False
    """Micro-batches have padding, for which transformers makes such a mask."""
    pairs: bool = False
    """DPO and KTO: the loss compares log-probabilities of answers."""
    reference: bool = False
    """The frozen reference model of DPO, KTO or GRPO is present."""
    rollout: Rollout | None = None
    """How completions are generated, in GRPO."""
    packs_experts: bool = False
    """4-bit loading packs routed experts too: transformers 4 has an nn.Linear for each; transformers 5, whose experts
    are one parameter with three dimensions, leaves them in 16 bits."""
    upcasts_rest: bool = False
    """What is frozen and not in 4 bits is fp32, and runs under autocast unless `single_precision`. With QLoRA
    (embedding, norms, output layer) peft's utils/other.py prepare_model_for_kbit_training does this; LLaMA-Factory does
    not call it. With LoRA it is the whole model, if a program loads it without a data type: transformers before 5 then
    has fp32."""

    @property
    def logits_share(self) -> float:
        """Return the share of tokens that have logits: GRPO computes those of completions alone (logits_to_keep)."""
        if self.rollout is None:
            return 1.0
        return self.rollout.completion_tokens / (self.rollout.prompt_tokens + self.rollout.completion_tokens)

    @property
    def adapters(self) -> bool:
        return self.method in ("lora", "qlora")

    @property
    def casts_frozen(self) -> bool:
        """Return whether autocast casts frozen weights of projections in every pass."""
        return self.method == "lora" and self.upcasts_rest and not self.single_precision

    @property
    def trains_output(self) -> bool:
        """Return whether the embedding and the output layer are trained."""
        return self.method == "full" and self.trained.language

    @property
    def copies_output(self) -> bool:
        """Return whether a copy of the embedding or of the output layer is trained."""
        return self.adapters and not self.copied.isdisjoint(("embedding", "output"))


def form_of(tuning: Tuning, memory: MemoryTraits, part_trained: bool) -> EagerForm:
    """Return how the modules of a part of the model run."""
    if tuning.single_precision and tuning.adapters:
        return EagerForm(element=4, residual=4, trained=False, adapters=part_trained, targets=tuning.lora_targets,
                         drops=part_trained and tuning.drops)  # fmt: skip
    if tuning.single_precision:
        return EagerForm(element=4, residual=4, trained=part_trained)
    autocast = memory.autocast_bytes > 0
    if tuning.adapters:
        casts = autocast or tuning.upcasts_rest
        residual = 4 if tuning.upcasts_rest else 2
        return EagerForm(residual=residual, trained=False, adapters=part_trained, targets=tuning.lora_targets,
                         casts=part_trained and casts, drops=part_trained and tuning.drops)  # fmt: skip
    # The residual stream is fp32 if the fp32 embedding is trained; the frozen embedding of `partial` returns bf16.
    is_fp32 = part_trained and autocast and tuning.method == "full"
    return EagerForm(residual=4 if is_fp32 else 2, trained=part_trained, casts=part_trained and autocast)
