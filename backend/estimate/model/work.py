"""FLOPs of an iteration: of each pipeline stage for its bubble, and of one token for throughput."""

from functools import lru_cache

from backend.estimate.array_ops import Number, choose, smaller
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memory.stage import Trained, stages
from backend.estimate.model.flops import layer_flops
from backend.estimate.model.layers import LayerKind, ModelLayers, TowerPart, VisionLayers, last_kinds, operators_of
from backend.estimate.plan import Plan
from backend.job.model.operators import Attention


@frozen_dataclass
class Work:
    """FLOPs of one micro-batch."""

    forward: Number
    backward: Number
    """FLOPs of gradients, without recomputation."""
    recomputed: Number

    def times(self, count: int) -> "Work":
        """Return the work of `count` such layers."""
        return Work(forward=count * self.forward, backward=count * self.backward, recomputed=count * self.recomputed)

    def __add__(self, other: "Work") -> "Work":
        return Work(
            forward=self.forward + other.forward,
            backward=self.backward + other.backward,
            recomputed=self.recomputed + other.recomputed,
        )


NONE = Work(forward=0.0, backward=0.0, recomputed=0.0)


def pipeline_work(layers: ModelLayers, plan: Plan, trained: Trained, *, adapters: bool = False) -> list[Work]:
    """Return the FLOPs on one rank of each stage: its layers, the output layer on the last, the vision tower on the
    first.

    With `adapters` every weight is frozen, and gradients pass through those of trained parts. The work of the adapters
    themselves is too small to count.
    """
    language = trained.language and not adapters
    inputs_need = trained.language or (trained.vision and layers.vision is not None)
    vectors_need = trained.tower or trained.merger
    kinds = {kind: _layer(kind, plan, language, inputs_need, vectors_need=vectors_need) for kind in layers.kinds}
    works = []
    for stage in stages(layers, plan):
        work = NONE
        for kind, count in stage.kinds:
            work += kinds[kind].times(count)
        if stage.last:
            work += _layer(layers.output, plan, language, True, recomputable=False).times(1 + layers.mtp)
        if stage.first and layers.stem:
            work += _layer(layers.stem, plan, language, inputs_need, recomputable=False)
        if stage.first and layers.vision:
            work += _tower(layers.vision, plan, trained, adapters)
        works.append(work)
    return works


def _layer(
    kind: LayerKind,
    plan: Plan,
    trained: bool,
    inputs_need: bool,
    *,
    recomputable: bool = True,
    vectors_need: bool = False,
) -> Work:
    """Return the work of a layer; `vectors_need`: whether what cross-attention reads of images needs a gradient."""
    inputs_need = inputs_need or trained
    if kind.of_images is None:
        return _rows(kind, plan, plan.tokens, plan.sequence_length, trained, inputs_need, recomputable=recomputable)
    own = _rows(kind, plan, plan.tokens, plan.cross_attention_length, trained, inputs_need)
    return own + _rows(kind.of_images, plan, plan.images * plan.image_keys, 0.0, trained, vectors_need)


def _rows(
    kind: LayerKind,
    plan: Plan,
    rows: Number,
    context: Number,
    trained: bool,
    inputs_need: bool,
    *,
    recomputable: bool = True,
) -> Work:
    """Return the work of a layer for so many tokens, each of which attends to `context`."""
    flops = layer_flops(kind)
    scale = rows / plan.tensor
    forward = scale * flops.forward(context)
    core = flops.attention * context
    attention = plan.by_recompute(lambda _, modules: core if "core_attn" in modules else 0.0)
    backward = scale * flops.backward(context, weights_trained=trained, inputs_need=inputs_need)
    again = choose(plan.full_recompute, flops.forward(context), attention) if recomputable else 0.0
    return Work(forward=forward, backward=backward, recomputed=scale * again)


def _tower(vision: VisionLayers, plan: Plan, trained: Trained, adapters: bool) -> Work:
    """Return the work of the vision tower, which sees every patch of an image or of a window at once and is not split
    over TP."""
    plan = plan.of_tower()
    patches, merged = plan.vision_patches, vision.patches_per_token
    seen = plan.patches_seen(joins_images=vision.joins_images)
    once = [
        (TowerPart(kind=vision.patch_embedding, count=1, checkpointed=False), trained.tower, False),
        (TowerPart(kind=vision.merger, count=1, joined=merged, checkpointed=False), trained.merger, trained.tower),
        (
            TowerPart(kind=vision.deep_stack_merger, count=vision.deep_stack, joined=merged, checkpointed=False),
            trained.deep_stack,
            trained.tower,
        ),
    ]
    work = NONE
    for part, weights_trained, inputs_need in (
        *once,
        *((part, trained.tower, trained.tower) for part in vision.blocks),
    ):
        flops, rows, length = layer_flops(part.kind), part.count * patches / part.joined, _keys(part, seen)
        forward = rows * flops.forward(length)
        backward = rows * flops.backward(
            length, weights_trained=weights_trained and not adapters, inputs_need=inputs_need
        )
        is_checkpointed = part.checkpointed and trained.tower
        again = choose(plan.full_recompute, forward, 0.0) if is_checkpointed else 0.0
        work += Work(forward=forward, backward=backward, recomputed=again)
    for part in vision.merger_layers if trained.merger else ():
        forward = part.count * patches / part.joined * layer_flops(part.kind).forward(seen)
        work += Work(forward=0.0, backward=0.0, recomputed=choose(plan.full_recompute, forward, 0.0))
    return work


def _keys(part: TowerPart, seen: Number) -> Number:
    """Return the rows that a row of a tower attends to: those of `seen` patches, or of its window."""
    keys: Number = seen / part.joined
    window = max((each.window for each in operators_of(part.kind, Attention)), default=0)
    return smaller(keys, window) if window else keys


def flops_per_token(
    layers: ModelLayers, plan: Plan, trained: Trained, adapters: bool = False, length: Number | None = None
) -> float:
    """Return the training FLOPs of one token of the sequence, with the share of images and without recomputation.

    They are 6 per trained weight, 4 per frozen weight with a gradient of its input, 2 per other weight, and 6 s a d per
    layer for attention. The distribution over ranks does not change them. `length` replaces that of the plan.
    """
    tokens, images = float(plan.sequence_length if length is None else length), float(plan.images / plan.micro_batch)
    return _flops_of_sequence(layers, tokens, images, plan.patches, plan.image_keys, trained, adapters) / tokens


@lru_cache(maxsize=1024)
def _flops_of_sequence(
    layers: ModelLayers, length: float, images: float, patches: int, image_keys: int, trained: Trained, adapters: bool
) -> float:
    plan = Plan(sequence_length=length, micro_batches=1, images=images, patches=patches, image_keys=image_keys)
    [work] = pipeline_work(layers, plan, trained, adapters=adapters)
    return float(work.forward + work.backward)


def flops_of_last_layers(layers: ModelLayers, plan: Plan, last: int) -> float:
    """Return the FLOPs per token if only the last layers of a language model are trained; the gradient ends at the
    lowest of them."""
    [work] = pipeline_work(layers, plan, Trained())
    backward = sum(count * _layer(kind, plan, True, True).backward for kind, count in last_kinds(layers, last))
    backward += _layer(layers.output, plan, False, True, recomputable=False).backward
    return float((work.forward + backward) / plan.tokens)
