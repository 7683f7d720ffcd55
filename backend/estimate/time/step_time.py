"""Seconds of a training step and of its parts: pipeline stages, data parallelism, optimizer, offloading."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from numpy import ndarray

from backend.estimate.array_ops import ZERO, Number, choose, larger
from backend.estimate.frozen_dataclass import frozen_dataclass, positional_dataclass
from backend.estimate.memo import Memo
from backend.estimate.memory.stage import Chunk, LayerCut, RankParameters, Trained, layer_cut
from backend.estimate.model.layers import ModelLayers, TowerPart, VisionLayers, counted_kinds
from backend.estimate.model.load import Load, load_of
from backend.estimate.time.chunked_loss import chunked_loss_seconds
from backend.estimate.time.communication import Group, ring_seconds, send_seconds
from backend.estimate.time.cross_attention import cross_attention_passes
from backend.estimate.time.data_parallel import after_passes_seconds, data_seconds
from backend.estimate.time.layer_time import layer_passes
from backend.estimate.time.passes import NO_PASS, NO_PASSES, Pass, Passes
from backend.estimate.time.schedule import iteration_time
from backend.estimate.time.shard_copies import reduction_copy_seconds
from backend.estimate.time.time_context import TimeContext

ChunkTimes = tuple[tuple[Number, ...], ...]
Schedule = Callable[[ChunkTimes, ChunkTimes, int, Number], Number]


@frozen_dataclass
class StepTime:
    """One optimizer step of a plan, in seconds."""

    iteration_s: Number
    parts: Mapping[str, Number]
    """compute, recompute, bubble, tensor, pipeline, data, context, expert, optimizer, offload: the mean of a rank over
    the stages. They add up to iteration_s."""
    forward: tuple[Number, ...]
    """Seconds of one micro-batch on each stage, communication included."""
    backward: tuple[Number, ...]
    chunk_forward: ChunkTimes
    """The same for each model chunk of each stage."""
    chunk_backward: ChunkTimes
    bubble: Number
    """1 - mean busy time of the stages / the part of the iteration in which passes run."""


@positional_dataclass
class KindPasses:
    """Passes of one micro-batch through one layer of each kind, the output layer with its loss, and the tower."""

    kinds: tuple[Passes, ...]
    """Passes through a layer of each of ModelLayers.kinds."""
    head: Passes
    tower: Passes


KindSeconds = tuple[Number, ...]
"""Total seconds of KindPasses in one direction: of each kind, of the output layer, and of the tower."""


@positional_dataclass
class ModelSeconds:
    """Seconds of one micro-batch through the whole model, forward and backward."""

    compute: Number
    recompute: Number
    tensor: Number
    context: Number
    expert: Number

    def times(self, share: Number) -> "ModelSeconds":
        """Return `share` times the seconds."""
        return ModelSeconds(
            share * self.compute,
            share * self.recompute,
            share * self.tensor,
            share * self.context,
            share * self.expert,
        )


@positional_dataclass
class MicroBatch:
    """Seconds of one micro-batch that do not depend on the cut of the layers into stages."""

    forward: KindSeconds
    backward: KindSeconds
    """Backward seconds, recomputation included."""
    model: ModelSeconds

    def times(self, share: Number) -> "MicroBatch":
        """Return a micro-batch that takes `share` times as long."""
        if type(share) is float and share == 1:
            return self
        forward = tuple([share * seconds for seconds in self.forward])
        backward = tuple([share * seconds for seconds in self.backward])
        return MicroBatch(forward, backward, self.model.times(share))


def step_time(
    layers: ModelLayers,
    time_context: TimeContext,
    trained: Trained,
    parameters: Sequence[RankParameters],
    *,
    adapters: bool = False,
    micro_batch: MicroBatch | None = None,
    memo: Memo | None = None,
    schedule: Schedule = iteration_time,
) -> StepTime:
    """Return the time of a step; `parameters` are those of one rank of each stage.

    `micro_batch` saves its computation if the caller knows it. `schedule` computes the time of all passes from the
    times of the chunks.
    """
    plan = time_context.plan
    micro_batch = micro_batch or micro_batch_time(layers, kind_passes(layers, time_context, trained, adapters=adapters))
    sends = _sends(layers, time_context)
    cut, sends_of_chunk = layer_cut(layers, plan), sends / plan.virtual_pipeline
    chunk_forward = _chunk_times(cut, micro_batch.forward, sends_of_chunk)
    chunk_backward = _chunk_times(cut, micro_batch.backward, sends_of_chunk)
    forward, backward = tuple(map(sum, chunk_forward)), tuple(map(sum, chunk_backward))
    if plan.pipeline == 1:
        # The only stage never waits.
        scheduled = plan.micro_batches * (forward[0] + backward[0])
    else:
        scheduled = schedule(chunk_forward, chunk_backward, plan.virtual_pipeline, plan.micro_batches)
    # Passes of an average stage.
    model, times = micro_batch.model, plan.micro_batches / plan.pipeline
    parts = {
        "compute": times * model.compute,
        "recompute": times * model.recompute,
        "tensor": times * model.tensor,
        "context": times * model.context,
        "expert": times * model.expert,
        "pipeline": 2 * plan.micro_batches * sends,
    }
    bubble = larger(0.0, scheduled - sum(parts.values())) if plan.pipeline > 1 else 0.0
    data = data_seconds(time_context, parameters, forward, backward, memo)
    if time_context.run.sharding == "fsdp_2":
        data = data + reduction_copy_seconds(time_context, parameters[0])
    optimizer, offload = _after_passes(time_context, parameters, memo)
    parts |= {"bubble": bubble, "data": data, "optimizer": optimizer, "offload": offload}
    return StepTime(
        iteration_s=scheduled + data + optimizer + offload,
        parts=parts,
        forward=forward,
        backward=backward,
        chunk_forward=chunk_forward,
        chunk_backward=chunk_backward,
        bubble=bubble / scheduled,
    )


def _after_passes(
    time_context: TimeContext, parameters: Sequence[RankParameters], memo: Memo | None
) -> tuple[Number, Number]:
    """Return the seconds of the optimizer step and of offloading on the slowest rank."""
    # Inner stages often have the same parameters.
    distinct = {id(rank): rank for rank in parameters}.values()
    if memo is None:
        return _slowest(time_context, distinct)
    return memo.once((_slowest, *map(memo.number, distinct)), _slowest, time_context, distinct)


def _slowest(time_context: TimeContext, ranks: Collection[RankParameters]) -> tuple[Number, Number]:
    optimizer, offload = ZERO, ZERO
    for rank in ranks:
        optimizer_s, offload_s = after_passes_seconds(time_context, rank)
        optimizer, offload = larger(optimizer, optimizer_s), larger(offload, offload_s)
    return optimizer, offload


def kind_passes(
    layers: ModelLayers,
    time_context: TimeContext,
    trained: Trained,
    *,
    adapters: bool = False,
    last_layers: int | None = None,
) -> KindPasses:
    """Return the passes of one micro-batch through one layer of each kind, on any stage.

    If only the last layers are trained, the backward passes of all layers are scaled to their share.
    """
    language = trained.language and not adapters
    inputs_need = trained.language or (trained.vision and layers.vision is not None)
    load = load_of(time_context)
    adapted = adapters and trained.language

    decoder: list[Passes] = []
    for kind in layers.kinds:
        if kind.of_images:
            passes = cross_attention_passes(
                kind,
                kind.of_images,
                time_context,
                load,
                trained,
                weights_trained=language,
                inputs_need=inputs_need,
                adapted=adapted,
            )
        else:
            passes = layer_passes(
                kind, time_context, load, weights_trained=language, inputs_need=inputs_need, adapted=adapted
            )
        decoder.append(passes)
    tower = _tower(layers.vision, time_context, trained, adapters) if layers.vision else NO_PASSES
    head = _head(layers, time_context, load, language)
    if layers.stem:
        # Its own weights are trained, but the embedding before it takes no time.
        stem = layer_passes(
            layers.stem, time_context, load, weights_trained=language, inputs_need=language, recomputable=False
        )
        head = head.plus(stem)
    kinds = KindPasses(tuple(decoder), head, tower)
    forwards = time_context.run.forward_passes
    if last_layers is None and forwards == 1:
        return kinds
    share = 1.0 if last_layers is None else min(1.0, last_layers / max(1, layers.count))

    def scaled(passes: Passes) -> Passes:
        return Passes(passes.forward.times(forwards), passes.backward.times(share), passes.recomputed.times(share))

    return KindPasses(tuple(map(scaled, kinds.kinds)), scaled(kinds.head), scaled(kinds.tower))


def micro_batch_time(layers: ModelLayers, kinds: KindPasses) -> MicroBatch:
    """Return the seconds of a micro-batch from its passes through one layer of each kind."""
    compute, recompute, tensor, context, expert = ZERO, ZERO, ZERO, ZERO, ZERO
    forward_s: list[Number] = []
    backward_s: list[Number] = []
    every = (*kinds.kinds, kinds.head, kinds.tower)
    for index, count in enumerate(_times_run(layers)):
        kind = every[index]
        forward, backward, recomputed = kind.forward, kind.backward, kind.recomputed
        forward_s.append(forward.total())
        backward_s.append(backward.total() + recomputed.total())
        if kind is not NO_PASSES:
            compute = compute + count * (forward.compute + backward.compute)
            recompute = recompute + count * recomputed.compute
            tensor = tensor + count * (forward.tensor + backward.tensor + recomputed.tensor)
            context = context + count * (forward.context + backward.context + recomputed.context)
            expert = expert + count * (forward.expert + backward.expert + recomputed.expert)
    model = ModelSeconds(compute, recompute, tensor, context, expert)
    return MicroBatch(tuple(forward_s), tuple(backward_s), model)


@lru_cache(maxsize=1024)
def _times_run(layers: ModelLayers) -> tuple[float, ...]:
    """Return how often a micro-batch runs each of KindPasses."""
    return (*(float(count) for _, count in counted_kinds(layers)), 1.0, 1.0)


def _chunk_times(cut: LayerCut, seconds: KindSeconds, sends: Number) -> ChunkTimes:
    """Return the seconds of one micro-batch in one direction for each chunk of each stage, sends included."""
    # Equal chunks share one object for their time: the simulation compares plans by this object.
    times = [sends + _chunk_seconds(chunk, seconds) for chunk in cut.chunks]
    return tuple([tuple(map(times.__getitem__, places)) for places in cut.places])


def _chunk_seconds(chunk: Chunk, seconds: KindSeconds) -> Number:
    """Return the seconds of a chunk: its layers, plus the vision tower in the first and the output layer in the last
    chunk."""
    total = ZERO
    for kind, count in enumerate(chunk.counts):
        total = total + count * seconds[kind]
    if chunk.first:
        total = total + seconds[-1]
    return total + seconds[-2] if chunk.last else total


def _head(layers: ModelLayers, time_context: TimeContext, load: Load, trained: bool) -> Passes:
    """Return the passes through the output layer and the loss; each MTP layer adds one of each."""
    memory = time_context.run.memory
    passes = layer_passes(
        layers.output, time_context, load, weights_trained=trained, inputs_need=True, recomputable=False
    )
    entries = load.tokens * (layers.embedding // layers.output.hidden) / load.tensor / time_context.machine.memory
    forward = passes.forward.computing(memory.loss_forward_moved * entries)
    if time_context.run.liger.loss:
        forward = forward.computing(chunked_loss_seconds(layers, time_context, load, trained=trained))
    backward = passes.backward.computing(memory.loss_backward_moved * entries)
    if layers.mtp:
        forward, backward = forward.times(1 + layers.mtp), backward.times(1 + layers.mtp)
    return Passes(forward, backward, NO_PASS)


def _tower(vision: VisionLayers, time_context: TimeContext, trained: Trained, adapters: bool) -> Passes:
    """Return the passes through the vision tower, which is whole on every TP rank and sees all patches of an image."""
    plan = time_context.plan.of_tower()
    if not (plan.images.any() if type(plan.images) is ndarray else plan.images):
        return NO_PASSES
    if plan is not time_context.plan:
        time_context = replace(time_context, plan=plan)
    patches, seen = plan.vision_patches, plan.patches_seen(joins_images=vision.joins_images)
    loads: dict[float, Load] = {}
    forward, backward, recomputed = ZERO, ZERO, ZERO
    # PEFT gives no gradient to the inputs of 4-bit models (peft_model.py _prepare_model_for_gradient_checkpointing).
    patches_need = adapters and vision.patches_need and not trained.tower and not time_context.run.unpacked
    has_backward = choose(plan.full_recompute, 1.0, 0.0) if patches_need else 1.0
    for part, weights_trained, inputs_need, of_blocks in _tower_parts(vision, trained, patches_need):
        joined = part.joined
        if joined not in loads:
            loads[joined] = Load(tokens=patches / joined, length=seen / joined)
        passes = layer_passes(
            part.kind,
            time_context,
            loads[joined],
            weights_trained=weights_trained and not adapters,
            inputs_need=inputs_need,
            adapted=adapters and of_blocks,
            tower=True,
            recomputable=of_blocks and part.checkpointed,
        )
        # The tower has no communication.
        forward = forward + part.count * passes.forward.compute
        backward = backward + has_backward * part.count * passes.backward.compute
        recomputed = recomputed + part.count * passes.recomputed.compute
    for part in vision.merger_layers if trained.merger else ():
        load = Load(tokens=patches / part.joined, length=seen / part.joined)
        # The backward pass of the merger, above, counts the copies.
        uncopied = replace(time_context, run=replace(time_context.run, sharding=None))
        passes = layer_passes(part.kind, uncopied, load, weights_trained=not adapters, inputs_need=True, tower=True)
        recomputed = recomputed + part.count * passes.recomputed.compute
    return Passes(Pass(forward, 0.0, 0.0, 0.0), Pass(backward, 0.0, 0.0, 0.0), Pass(recomputed, 0.0, 0.0, 0.0))


@lru_cache(maxsize=256)
def _tower_parts(
    vision: VisionLayers, trained: Trained, patches_need: bool
) -> tuple[tuple[TowerPart, bool, bool, bool], ...]:
    """Return the parts of a tower, each with whether its weights are trained, whether its input needs a gradient, and
    whether it is one of the trained blocks."""
    inputs_need, merged = trained.tower or patches_need, vision.patches_per_token
    deep_stack = TowerPart(kind=vision.deep_stack_merger, count=vision.deep_stack, joined=merged)
    parts = (
        (TowerPart(kind=vision.patch_embedding, count=1), trained.tower, False, False),
        (TowerPart(kind=vision.merger, count=1, joined=merged), trained.merger, inputs_need, False),
        (deep_stack, trained.deep_stack, inputs_need, False),
        *((part, trained.tower, inputs_need, trained.tower) for part in vision.blocks),
    )
    return tuple(part for part in parts if part[0].count)


def _sends(layers: ModelLayers, time_context: TimeContext) -> Number:
    """Return the seconds to send the activations or gradients of one micro-batch to the next stage, for all chunks."""
    plan = time_context.plan
    if plan.pipeline == 1:
        return 0.0
    machine, efficiency = time_context.machine, time_context.efficiency
    size = time_context.run.element_bytes * plan.tokens * layers.output.hidden
    if layers.mtp and layers.vision:
        # The embedding for the MTP layers goes along (mcore-bridge 1.6.5 model/gpt_model.py _postprocess).
        size = 2 * size
    share = 1 / plan.tensor if time_context.run.scattered_sends else plan.whole_share
    group = Group(plan.pipeline, plan.tensor * plan.context * plan.data)
    send = send_seconds(size * share, group, machine, efficiency)
    if time_context.run.scattered_sends:
        send = send + ring_seconds(size, Group(plan.tensor, 1), machine, efficiency)
    seconds = plan.virtual_pipeline * send
    return seconds * (1 - efficiency.overlap_share) if time_context.run.overlap_sends else seconds
