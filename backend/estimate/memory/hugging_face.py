"""Memory of a rank under LLaMA-Factory's Hugging Face path (DDP, DeepSpeed ZeRO, FSDP), term by term, in bytes.

Under DDP trainable parameters are fp32 and run under autocast (model/adapter.py); ZeRO and FSDP run 16-bit parameters.
Gradient checkpointing affects only layers with something to train (model/model_utils/checkpointing.py). sharding.py
computes the states that ranks divide. hugging_face_step.py has the moments of a step. eager_activations.py has the
saved tensors of the modules.
"""

from collections.abc import Sequence
from functools import lru_cache

from backend.estimate.array_ops import ZERO, Number, choose, larger, smaller
from backend.estimate.memory.hugging_face_step import UNREDUCED, step_moments
from backend.estimate.memory.memory_term import NOTHING, Piece, joined, piece, products_of
from backend.estimate.memory.rollout import beside_training
from backend.estimate.memory.sharding import sharded_states
from backend.estimate.memory.stage import RankParameters, Trained
from backend.estimate.memory.terms import LIBRARIES, Moment, StageMemory, peak_moment
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.adapters import (
    CopiedPart,
    adapter_parameters,
    copied_parameters,
    quantised_parameters,
    routed_parameters,
)
from backend.estimate.model.layers import ModelLayers, last_kinds
from backend.estimate.model.parameters import layer_counts, model_parameters, vision_parameters
from backend.estimate.plan import Plan
from backend.job.memory_traits import MemoryTraits


def data_parallel_memory(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning) -> StageMemory:
    """Return the memory of one rank; `memory` is in the precision of the run."""
    parameters = _parameters(
        layers,
        tuning.method,
        tuning.trained,
        tuning.last_layers,
        tuning.copied,
        (tuning.lora_rank, tuning.lora_targets, tuning.adapts_by_path) if tuning.adapters else None,
    )
    element = 4 if tuning.single_precision or tuning.upcasts_rest else memory.frozen_bytes
    states = sharded_states(layers, plan, memory, parameters, element, _packed_elements(layers, tuning))
    reference, reference_host = _reference(plan, memory, tuning, parameters)
    moments = step_moments(layers, plan, memory, tuning, parameters, states)
    peak = peak_moment(moments)
    weights = joined(states.weights, reference)
    always = joined(LIBRARIES, _pack_masks(plan, tuning), *beside_training(tuning.rollout))
    return StageMemory(
        stage=0,
        layers=layers.count,
        parameters=parameters,
        weights=weights.bytes,
        gradients=states.buckets.bytes + peak.gradients,
        optimizer=states.optimizer.bytes,
        activations=peak.activations,
        logits=peak.logits,
        workspace=peak.workspace + always.bytes,
        host=states.host + reference_host,
        apart=_apart(moments, plan, memory, states.gradients.bytes, peak),
        products=products_of(weights, states.optimizer, peak, states.buckets, always),
    )


def _apart(moments: Sequence[Moment], plan: Plan, memory: MemoryTraits, shards: Number, peak: Moment) -> Number:
    """Return the bytes that torch reserves beside the peak because FSDP allocates the shards of gradients in a stream
    of its own. They have been freed when the next step needs most, but torch's allocator reuses memory only in the
    stream that had it.

    torch 2.13: distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce; FSDP 1's _runtime_utils.py
    _post_backward_hook; c10/cuda/CUDACachingAllocator.cpp get_free_block.
    """
    if not memory.reduces_layers:
        return ZERO
    most = ZERO
    for number, each in enumerate(moments):
        reduced = smaller(each.gradients, shards)
        if number < UNREDUCED and memory.accumulates_whole:
            reduced = choose(plan.micro_batches > 1, 0.0, reduced)
        most = larger(most, each.total - reduced)
    return larger(most + shards - peak.total, 0.0)


def _pack_masks(plan: Plan, tuning: Tuning) -> Piece:
    """Return the masks of a step's packed sequences, of all pairs of tokens, in the precision of products.

    transformers 5.6.0 trainer.py get_batch_samples moves all micro-batches of a step to the GPU before the first one.
    """
    if not tuning.masks_packs:
        return NOTHING
    element = 4 if tuning.single_precision else 2
    size = element * plan.micro_batches * plan.micro_batch * plan.sequence_length**2
    return piece("workspace_masks", size, bytes_each=element, elements=None)


def _reference(plan: Plan, memory: MemoryTraits, tuning: Tuning, parameters: RankParameters) -> tuple[Piece, Number]:
    """Return a reference model on the GPU, and its bytes on the host. It is a 16-bit copy; runs with adapters switch
    them off and need no copy.

    LLaMA-Factory's train/trainer_utils.py create_ref_model, and train/dpo/trainer.py and train/kto/trainer.py,
    which shard it too.
    """
    if not tuning.reference or tuning.adapters:
        return NOTHING, 0.0
    ranks = plan.data if memory.shards == "parameters" else 1
    size = memory.frozen_bytes * (parameters.dense + parameters.expert) / ranks
    if memory.offloads == "everything":
        return NOTHING, size
    return piece("weights_reference", size, ranks, bytes_each=memory.frozen_bytes, parameters=None), 0.0


@lru_cache(maxsize=1024)
def _parameters(
    layers: ModelLayers,
    method: str,
    parts: Trained,
    last_layers: int,
    copied: frozenset[CopiedPart],
    adapters: tuple[int, str, bool] | None,
) -> RankParameters:
    """Return the parameters of the whole model; `adapters` are the rank and the targets of LoRA, and whether these are
    named by path."""
    expert = routed_parameters(layers)
    total = model_parameters(layers)
    trained, trained_expert = 0, 0
    if adapters:
        rank, targets, by_path = adapters
        trained = adapter_parameters(layers, rank, targets, parts, by_path=by_path)
        trained += copied_parameters(layers, copied)
        total += trained
    elif method == "partial":
        for kind, count in last_kinds(layers, last_layers):
            trained += count * (layer_counts(kind).total - layer_counts(kind).expert)
            trained_expert += count * layer_counts(kind).expert
    else:
        vision = vision_parameters(layers.vision) if layers.vision else (0, 0, 0)
        flags = (parts.tower, parts.merger, parts.deep_stack)
        trained = sum(part for part, flag in zip(vision, flags, strict=True) if flag)
        if parts.language:
            trained += total - expert - sum(vision)
            trained_expert = expert
    return RankParameters(dense=total - expert, expert=expert, trained_dense=trained, trained_expert=trained_expert)


def _packed_elements(layers: ModelLayers, tuning: Tuning) -> int:
    """Return the number of weights in 4 bits."""
    if tuning.method != "qlora":
        return 0
    return quantised_parameters(layers) + (routed_parameters(layers) if tuning.packs_experts else 0)
