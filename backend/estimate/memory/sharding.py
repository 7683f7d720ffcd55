"""Bytes of the model states on a data-parallel rank of a Hugging Face engine, and of the parameters that it gathers.

torch DDP keeps everything on every rank. DeepSpeed ZeRO (arXiv 1910.02054) and FSDP divide optimizer, gradients and
parameters among the ranks, and gather 16-bit parameters while a layer runs. The traits of an engine say what it
divides.
"""

from functools import lru_cache

from backend.estimate.array_ops import ZERO, Number, choose, smaller
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memory.memory_term import NOTHING, Explanation, Piece, joined, piece, trained_piece
from backend.estimate.memory.stage import RankParameters
from backend.estimate.model.adapters import PACKED_BYTES, matrices
from backend.estimate.model.layers import ModelLayers, operators_of
from backend.estimate.model.parameters import layer_counts
from backend.estimate.plan import Plan
from backend.job.memory_traits import MemoryTraits
from backend.job.model.operators import Dispatch, Linear


@frozen_dataclass
class States:
    """Bytes of the states of one rank, on the GPU unless stated."""

    weights: Piece
    """Trained and frozen weights."""
    gradients: Piece
    """Gradients that accumulate over micro-batches."""
    buckets: Piece
    """Buckets and buffers of gradients in transfer, which stay allocated beside the gradients."""
    optimizer: Piece
    gathered: Number
    """Whole 16-bit parameters while layers run."""
    step: Number
    """fp32 gradients while the optimizer steps."""
    host: Number
    """Bytes of this rank in host memory."""


def sharded_states(
    layers: ModelLayers,
    plan: Plan,
    memory: MemoryTraits,
    parameters: RankParameters,
    element: float,
    packed: int = 0,
) -> States:
    """Return the states of one rank. `parameters` are those of the whole model, `packed` of them in 4 bits. The other
    frozen ones have `element` bytes."""
    count = parameters.trained_dense + parameters.trained_expert
    are_sharded, are_whole = memory.shards != "none", memory.shards != "parameters"
    on_rank = count / plan.data if are_sharded else count
    is_offloaded = memory.offloads != "none"
    whole, shard = (count, parameters, (1, 1)), (on_rank, parameters, (plan.data, plan.data))
    weights = trained_piece("weights", memory.weight_bytes, *(whole if are_whole else shard))
    shards_gradients = memory.shards in ("gradients", "parameters")
    gradients = trained_piece("gradients", memory.gradient_bytes, *(shard if shards_gradients else whole))
    optimizer = trained_piece("optimizer", memory.optimizer_bytes, *(shard if are_sharded else whole))
    frozen = _frozen(parameters, element, packed, 1 if are_whole else plan.data)
    host = ZERO
    if is_offloaded:
        # Master weights, moments, and the fp32 gradients for Adam on the host.
        host = optimizer.bytes + 4 * on_rank
        gradients = optimizer = NOTHING
    if memory.offloads == "everything":
        host = host + weights.bytes + frozen.bytes
        weights = frozen = NOTHING
    gathered = ZERO
    if not are_whole:
        gathered = _gathered(layers, memory, parameters, packed) + _moving(layers, plan, memory, parameters, packed)
    weights = joined(weights, frozen)
    if packed:
        scales = piece("weights_scales", memory.scale_bytes * packed, bytes_each=memory.scale_bytes, packed=None)
        weights = joined(weights, scales)
    return States(
        weights=weights,
        gradients=gradients,
        buckets=_buckets(layers, plan, memory, count),
        optimizer=optimizer,
        gathered=gathered,
        step=0.0 if is_offloaded else memory.step_gradient_bytes * smaller(on_rank, memory.step_elements),
        host=host,
    )


def _frozen(parameters: RankParameters, element: float, packed: int, ranks: Number) -> Piece:
    """Return the frozen weights without the scales of those in 4 bits, which every rank has."""
    trained = parameters.trained_dense + parameters.trained_expert
    frozen = element * (parameters.dense + parameters.expert - trained - packed) / ranks
    unpacked = piece("weights_frozen", frozen, ranks, bytes_each=element, frozen=None)
    if not packed:
        return unpacked
    return joined(
        unpacked, piece("weights_packed", PACKED_BYTES * packed / ranks, ranks, bytes_each=PACKED_BYTES, packed=None)
    )


def _buckets(layers: ModelLayers, plan: Plan, memory: MemoryTraits, count: Number) -> Piece:
    """Return the buckets of DDP, and the buffers that stay allocated for 16-bit gradients in transfer. ZeRO-2 with
    offloading has one more, for the largest weight (0.18.4 runtime/zero/stage_1_and_2.py
    temp_grad_buffer_for_gpu_offload)."""
    buckets = memory.bucket_bytes * count * choose(plan.data > 1, 1, 0)
    to_host = (
        smaller(count, largest_module(layers)) if memory.offloads == "optimizer" and memory.shards == "gradients" else 0
    )
    reduced = 2 * (memory.reduce_bucket_elements * choose(count > 0, 1, 0) + to_host)

    def products() -> Explanation:
        return joined(
            piece("gradients_buckets", buckets, bytes_each=memory.bucket_bytes, trained=None),
            piece("gradients_reduce", reduced, bytes_each=2, elements=None),
        ).products()

    return Piece(buckets + reduced, products)


def _gathered(layers: ModelLayers, memory: MemoryTraits, parameters: RankParameters, packed: int) -> Number:
    """Return the bytes of gathered parameters. Weights of 4 bits are gathered packed (bnb_4bit_quant_storage), and the
    layer unpacks them."""
    total = parameters.dense + parameters.expert
    spared = 2 - 0.5
    if memory.live_elements:
        return (2 - spared * packed / total) * smaller(total, largest_module(layers) + memory.live_elements)
    ends = layers.embedding * (1 if layers.tied else 2) + layers.positions
    units = [2 * layer_counts(kind).total - (spared * matrices(kind) if packed else 0) for kind in layers.kinds]
    return smaller(2 * total - spared * packed, 2 * ends + 2 * max(units))


def _moving(layers: ModelLayers, plan: Plan, memory: MemoryTraits, parameters: RankParameters, packed: int) -> Number:
    """Return the bytes of the shards of one unit that FSDP moves between the host and the GPU.

    The shard of a weight comes as it is stored, and the GPU casts it. The shard of its gradient is there in 16 bits and
    in the precision that the host gets (torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py all_gather_inputs,
    _fsdp_collectives.py foreach_reduce; read, not measured).
    """
    if memory.offloads != "everything" or memory.live_elements or packed:
        return ZERO
    trained = (parameters.trained_dense + parameters.trained_expert) / (parameters.dense + parameters.expert)
    stored = trained * memory.weight_bytes + (1 - trained) * memory.frozen_bytes
    cast = choose(stored > 2, 2, 0)
    return (stored + cast + trained * (2 + memory.gradient_bytes)) * largest_unit(layers) / plan.data


@lru_cache(maxsize=1024)
def largest_module(layers: ModelLayers) -> int:
    """Return the elements that DeepSpeed always fetches (0.18.4 runtime/zero/partitioned_param_coordinator.py
    fetch_sub_module): the weights of one module. A layer's experts are one module, unless they are those of a
    model's own code (Experts.leaf)."""
    sizes = [layers.embedding, layers.positions]
    for kind in layers.kinds:
        linears = operators_of(kind, Linear)
        fetched = any(dispatch.fetched for dispatch in operators_of(kind, Dispatch))
        alone = [linear for linear in linears if linear.share != "expert" or fetched]
        sizes += [linear.inputs * linear.outputs // linear.parts for linear in alone]
        if not fetched:
            sizes.append(layer_counts(kind).expert)
    return max(sizes)


@lru_cache(maxsize=1024)
def largest_unit(layers: ModelLayers) -> int:
    """Return the elements of the largest decoder layer, which is what FSDP gathers at a time."""
    return max(layer_counts(kind).total for kind in layers.kinds)
