"""The numbers of one plan that the formulas read. Fields of type Number may be arrays with one entry for each plan."""

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from backend.estimate.array_ops import Array, Flag, Number, choose, larger
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memory.padded_packs import is_padded, largest_pack
from backend.estimate.memory.worst_microbatch import worst_microbatch_length
from backend.job.attention import AttentionKind
from backend.job.batch import padding
from backend.job.checkpointing import can_checkpoint, recomputes_tower
from backend.job.job import Job, Parallel
from backend.job.model import ModelShape, VisionShape
from backend.job.pipeline_layout import layers_of


@frozen_dataclass
class Plan:
    """Parallel sizes, batch sizes and the recompute choice of a plan."""

    tensor: Number = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    context: Number = 1
    expert: Number = 1
    expert_tensor: Number = 1
    data: Number = 1
    """Copies of the model (DP)."""
    sequence_parallel: Flag = False
    sequence_length: Number
    """Tokens of a mean sequence; for memory, those of the longest micro-batch."""
    attended: float | None = None
    """Tokens of context for attention if a sequence holds several samples; None for the whole sequence."""
    micro_batch: Number = 1
    micro_batches: Number
    """Micro-batches per step (gradient accumulation)."""
    distributed_optimizer: Flag = True
    offload_fraction: float = 0.0
    """Share of the optimizer in host memory."""
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: Number = 1
    """Layers in a unit of full recompute."""
    recompute_choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """For arrays of plans that differ in recompute: every (recompute, modules) that occurs. It replaces the two fields
    above."""
    recompute_choice: int | npt.NDArray[np.intp] = 0
    """The index of each plan in recompute_choices."""
    recomputes_tower: bool = False
    """Whether a trained vision tower recomputes its activations whatever `recompute` is."""
    account_for_embedding: bool = False
    account_for_loss: bool = False
    pipeline_layout: tuple[int, ...] | None = None
    """Layers of each piece, chunk after chunk; None for equal pieces."""
    attention: AttentionKind = "fused"
    """What computes attention."""
    concatenated: bool = True
    """Whether the sequences of a micro-batch are joined to one. Only ms-swift's Megatron does so."""
    attention_dropout: bool = False
    """Whether stored probabilities have a dropout mask and a copy after dropout."""
    context_a2a: bool = False
    """Context parallelism by all-to-all instead of a ring."""
    images: Number = 0
    """Images in a micro-batch."""
    patches: int = 0
    """Vision patches of one image."""
    image_keys: int = 0
    """Vectors of one image that cross-attention reads; 0 if the model has none."""
    tokens: Number = field(init=False)
    """Tokens of one micro-batch on a rank, before TP splits them."""
    whole_share: Number = field(init=False)
    """Share of a TP rank in activations that only sequence parallelism splits."""
    full_recompute: Flag = field(init=False)
    """Whether layers keep only their inputs."""

    def __post_init__(self) -> None:
        computed: Any = self
        computed.tokens = self.micro_batch * self.sequence_length / self.context
        computed.whole_share = choose(self.sequence_parallel, 1 / self.tensor, 1.0)
        if self.recompute_choices:
            computed.full_recompute = self._where(lambda recompute, _: recompute == "full")
        else:
            computed.full_recompute = self.recompute == "full"

    def of_tower(self) -> "Plan":
        """Return the plan as it applies to the vision tower."""
        return replace(self, recompute="full", recompute_choices=()) if self.recomputes_tower else self

    def by_recompute(self, value: Callable[[str, tuple[str, ...]], Number]) -> Number:
        """Return `value(recompute, modules)` of the plan, entry by entry where plans differ in it."""
        if not self.recompute_choices:
            return value(self.recompute, self.recompute_modules)
        values: Array = np.array([value(*choice) for choice in self.recompute_choices])[self.recompute_choice]
        return values

    @property
    def attention_length(self) -> Number:
        """Return the tokens of context for attention."""
        return self.sequence_length if self.attended is None else self.attended

    @property
    def attention_recompute(self) -> Flag:
        """Return whether the attention core is recomputed on its own."""
        return self._where(lambda _, modules: "core_attn" in modules)

    def _where(self, test: Callable[[str, tuple[str, ...]], bool]) -> Flag:
        if not self.recompute_choices:
            return test(self.recompute, self.recompute_modules)
        tests: Flag = np.array([test(*choice) for choice in self.recompute_choices])[self.recompute_choice]
        return tests

    @property
    def expert_data(self) -> Number:
        """Return the ranks that hold the same experts."""
        world = self.tensor * self.context * self.data
        return world / (self.expert * self.expert_tensor)

    @property
    def optimizer_shards(self) -> Number:
        """Return the ranks that share the optimizer of dense parameters."""
        return choose(self.distributed_optimizer, self.data * self.context, 1)

    @property
    def expert_optimizer_shards(self) -> Number:
        """Return the ranks that share the optimizer of expert parameters."""
        return choose(self.distributed_optimizer, self.expert_data, 1)

    def optimizer_share(self, dense: Number, expert: Number) -> Number:
        """Return the number of parameters whose optimizer state is on this rank."""
        share = dense / self.optimizer_shards
        # Without experts their number is a plain 0, for arrays of plans too.
        if type(expert) is int and not expert:
            return share
        return share + expert / self.expert_optimizer_shards

    @property
    def vision_patches(self) -> Number:
        """Return the patches that one rank of the first stage sends through the tower for a micro-batch.

        mcore_adapter splits the images over TP x CP only when there is at least one for each of those ranks.
        """
        ranks = self.tensor * self.context
        return self.images * self.patches / choose(self.images >= ranks, ranks, 1)

    def patches_seen(self, *, joins_images: bool) -> Number:
        """Return the patches that a patch attends to: those of its image, or of all images of a micro-batch on its
        rank."""
        return larger(self.vision_patches, self.patches) if joins_images else self.patches

    @property
    def cross_attention_length(self) -> Number:
        """Return the vectors of images that a token of a sequence attends to in cross-attention."""
        return self.images / self.micro_batch * self.image_keys


def plan_of(job: Job, vision: VisionShape | None, *, attention: AttentionKind = "fused") -> Plan:
    """Return the plan of a job. Hugging Face engines have data parallelism only."""
    training, parallel = job.training, job.parallel
    split = parallel if job.traits.is_megatron else _UNSPLIT
    recompute = job.recompute
    sequences = training.micro_batch_size * job.sequences_per_sample
    concatenated = padding(job) == "nothing"
    return Plan(
        data=job.data_parallel,
        sequence_length=_memory_length(job, attention != "scores" and concatenated),
        attended=largest_pack(job).attended if is_padded(job) else None,
        micro_batch=sequences,
        micro_batches=job.accumulation,
        recompute=recompute,
        recompute_modules=(parallel.recompute_modules or ("core_attn",)) if recompute == "selective" else (),
        recompute_layers=parallel.recompute_num_layers or 1,
        recomputes_tower=recomputes_tower(job),
        attention=attention,
        concatenated=concatenated,
        # With cross-attention a batch without images gets a picture (backend/estimate/model/cross_attention.py).
        images=sequences * max(training.images_per_sample, int(vision.keys > 0)) if vision else 0,
        patches=patches_per_image(job, vision) if vision else 0,
        image_keys=vision.keys if vision else 0,
        tensor=split.tensor,
        pipeline=split.pipeline,
        virtual_pipeline=split.virtual_pipeline,
        context=split.context,
        expert=split.expert,
        expert_tensor=split.expert_tensor,
        # mcore_adapter turns sequence parallelism on if TP and EP are combined.
        sequence_parallel=(split.tensor > 1) & (split.sequence | (split.expert > 1)),
        distributed_optimizer=split.distributed_optimizer,
        offload_fraction=split.optimizer_offload_fraction,
        account_for_embedding=split.account_for_embedding,
        account_for_loss=split.account_for_loss,
        pipeline_layout=layers_of(split.pipeline_layout) if split.pipeline_layout else None,
    )


def _memory_length(job: Job, packs_tightly: Flag) -> Number:
    """Return the tokens of a mean sequence in the largest micro-batch.

    The formula of stored scores takes all sequences for equally long, so each counts as the longest.
    """
    if is_padded(job):
        return largest_pack(job).tokens
    return worst_microbatch_length(job) if packs_tightly else job.longest_sequence


def plan_of_model(job: Job, shape: ModelShape, *, attention: AttentionKind = "fused") -> Plan:
    """Return the plan of a job as its engine carries it out with this model."""
    plan = plan_of(job, shape.vision, attention=attention)
    if can_checkpoint(job, shape.model_type):
        return plan
    return replace(plan, recompute="none", recompute_modules=())


_UNSPLIT = Parallel()

Choice = tuple[str, tuple[str, ...]]


def effective_choices(job: Job, model_type: str, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return what the engine does of each (recompute, modules)."""
    if can_checkpoint(job, model_type):
        return choices
    return tuple(("none", ()) for _ in choices)


def unsplit(plan: Plan) -> Plan:
    """Return one micro-batch of the plan on a single rank."""
    return Plan(
        sequence_length=plan.sequence_length,
        micro_batch=plan.micro_batch,
        micro_batches=1,
        images=plan.images,
        patches=plan.patches,
        image_keys=plan.image_keys,
    )


def patches_per_image(job: Job, vision: VisionShape) -> int:
    """Return the patches of the largest allowed image: whole merged tokens within `image_max_pixels`, unless the tower
    resizes every image, or each of its tiles, to one size."""
    if vision.image_patches:
        return vision.image_patches * _tiles(job, vision)
    merged_pixels = (vision.patch * vision.merge) ** 2
    return max(job.training.image_max_pixels // merged_pixels, 1) * vision.merge**2


def _tiles(job: Job, vision: VisionShape) -> int:
    """Return the tiles of an image: the most there are under ms-swift, which always cuts images (4.6.0
    template/templates/internvl.py). LLaMA-Factory does so with `crop_to_patches` (data/mm_plugin.py InternVLPlugin)."""
    if job.traits.environment != "swift":
        return vision.tiles if str(job.extra.get("crop_to_patches")).lower() == "true" else 1
    chosen = job.environment.get(vision.tiles_variable, "")
    if not (chosen.isascii() and chosen.isdigit() and 0 < int(chosen) <= _MOST_TILES):
        return vision.tiles
    return int(chosen) + (int(chosen) > 1)


_MOST_TILES = 1024
"""Larger numbers are taken for a mistake."""
