"""Work in which a GPU copies gathered weights, and gradients that it will reduce, from one buffer to another.

FSDP and ZeRO-3 exchange one buffer for many tensors. The copies run on the stream of the layers, so nothing hides them.
They do not depend on the tokens: small micro-batches pay most.

- FSDP 2 copies every gathered weight out of the buffer, and every gradient into one (torch 2.13
  distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_all_gather_copy_out, foreach_reduce_scatter_copy_in).
- FSDP 1 gathers into the tensor whose parts the modules read; autograd joins the gradients of the parts, in every
  micro-batch (_flat_param.py _get_unflat_views_unaligned: the backward of torch.split is a cat).
- ZeRO-3 joins the ranks' parts of every weight (DeepSpeed 0.19.8 runtime/zero/partition_parameters.py
  AllGatherCoalescedHandle.wait). It copies gradients on a stream of its own.
"""

from backend.estimate.array_ops import Number, choose
from backend.estimate.memory.stage import RankParameters
from backend.estimate.model.load import Load
from backend.estimate.time.communication import is_single_rank
from backend.estimate.time.kernels import LayerKernels
from backend.estimate.time.passes import Extra
from backend.estimate.time.time_context import TimeContext


def copy_work(
    layer: LayerKernels, time_context: TimeContext, load: Load, *, trained: bool, repeated: bool
) -> tuple[Extra, Extra]:
    """Return the copies of every micro-batch for one layer, forward and backward.

    There is a copy for the gather before each pass; weights that stay gathered have none before the backward pass.
    `repeated` says whether full recompute repeats the forward pass. The repeated pass counts a copy, too, so the
    backward pass counts one less: -1 if the weights stay gathered.
    """
    run = time_context.run
    weights = layer.weights_split / load.tensor + layer.weights_whole
    if layer.weights_expert and is_single_rank(load.expert):
        weights = weights + layer.weights_expert
    copied: Number = 2 * run.element_bytes * weights / time_context.machine.memory
    if run.sharding == "fsdp_1":
        return Extra(0.0, 0.0), Extra(copied if trained else 0.0, 0.0)
    again: Number = 0.0 if run.keeps_gathered else 1.0
    if repeated:
        # A share below 1 has an effect only on a recompute that stops early (layer_time.py).
        share = run.recomputed_layers if run.stops_early else 1.0
        again = again - choose(time_context.plan.full_recompute, share, 0.0)
    return Extra(copied, 0.0), Extra(again * copied, 0.0)


def reduction_copy_seconds(time_context: TimeContext, rank: RankParameters) -> Number:
    """Return the seconds of a step in which FSDP 2 copies gradients of a rank, in the type of the reduction."""
    run, trained = time_context.run, rank.trained_dense + rank.trained_expert
    reductions = 1 if run.reduces_once else time_context.plan.micro_batches
    return (run.element_bytes + time_context.sent_bytes) * reductions * trained / time_context.machine.memory
