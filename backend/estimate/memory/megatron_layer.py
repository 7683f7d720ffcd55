"""Memory of one layer, and of the vision tower, under Megatron-Core, on one rank and for one micro-batch.

saved_activations.py has the saved tensors of Transformer Engine's modules; megatron.py counts the layers of a stage.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache

from backend.estimate.array_ops import ZERO, Flag, Number, choose, larger
from backend.estimate.frozen_dataclass import frozen_dataclass, positional_dataclass
from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.memory.megatron_adapters import Adapters, adapter_bytes
from backend.estimate.memory.megatron_sparse import core_revived, core_saved, core_work, kept_choices
from backend.estimate.memory.megatron_workspace import expert_copies, ffn_gradients, largest_weight
from backend.estimate.memory.memory_term import NOTHING, Explanation, Piece, joined, largest_piece, piece, token_piece
from backend.estimate.memory.saved_activations import SavedBytes, fused_bytes, recomputed_bytes
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import Moment
from backend.estimate.model.layers import LayerKind, VisionLayers, operators_of
from backend.estimate.plan import Plan
from backend.job.memory_traits import MemoryTraits
from backend.job.model.operators import Attention, ChosenKeys


@frozen_dataclass
class Run:
    """What a Megatron run trains, and whether a reference model is beside it."""

    trained: Trained
    adapters: Adapters | None = None
    """LoRA adapters; all other weights are frozen then."""
    reference: bool = False
    """DPO: a frozen copy of the model is present."""

    @property
    def weights_trained(self) -> bool:
        """Return whether the decoder's own weights are trained."""
        return self.trained.language and not self.adapters


@positional_dataclass
class LayerCost:
    """One layer of a kind on one rank."""

    name: str
    """The name of its kind."""
    saved: Number
    """Saved activations of one micro-batch, without full recompute."""
    moment: Moment
    """The bytes that its backward pass needs beside them."""
    held: Number
    """What it keeps beside its input under full recompute."""


def element_bytes(memory: MemoryTraits) -> float:
    """Return the bytes of an element of an activation, which are those of a weight."""
    return memory.weight_bytes


def layer_cost(kind: LayerKind, plan: Plan, memory: MemoryTraits, run: Run) -> LayerCost:
    """Return what a layer keeps, and what its backward pass needs beside that.

    The backward pass needs what it recomputes, the gradients of the FFN, and the gradient of one weight. The forward
    pass needs the copies of tokens that go to experts and back. The larger of both counts.
    """
    attentions, cores = operators_of(kind, Attention), operators_of(kind, ChosenKeys)
    attention = attentions[0] if attentions else None
    scale = element_bytes(memory) / 2
    adapters = run.adapters if run.trained.language else None

    fused = _by_modules(plan, kind, fused_bytes, run.trained.language, plan.context_a2a, memory.fp8)
    saved = scale * _spread(fused, plan, attention)
    if adapters:
        outputs, gathered, masked = adapter_bytes(kind, adapters)
        saved = saved + scale * plan.tokens * (outputs + gathered * (1 - plan.whole_share))
        saved = saved + scale * _spread(masked, plan, attention)
    revived = ZERO
    if plan.recompute_modules or plan.recompute_choices:
        again = _by_modules(plan, kind, recomputed_bytes, memory.fp8)
        revived = scale * _spread(again, plan, attention)
    work = scale * ffn_gradients(kind, plan, adapters)
    if attention and plan.attention == "scores":
        kept, recomputed, needed = _scores(attention, plan, memory, scale)
        saved, revived, work = saved + kept, revived + recomputed, larger(work, needed)
    core = NOTHING
    if cores:
        core = core_work(cores[0], kind, plan)
        saved, revived = saved + core_saved(cores[0], kind, plan), revived + core_revived(cores[0], plan)
    revived = choose(plan.full_recompute, plan.recompute_layers * saved, revived)
    gradient = _weight_gradient(kind, plan, memory, run)
    copies = scale * expert_copies(kind, plan, adapters)

    def products() -> Explanation:
        units = choose(plan.full_recompute, plan.recompute_layers, 1)
        stores_scores = attention is not None and plan.attention == "scores"
        work_name = "workspace_attention" if stores_scores else "workspace_ffn"
        backward = joined(gradient, largest_piece(token_piece(work_name, work, plan), core))
        workspace = largest_piece(backward, token_piece("workspace_experts", copies, plan))
        return joined(token_piece("activations_recomputed", revived, plan, layers=units), workspace).products()

    peak = Moment(0.0, revived, 0.0, larger(larger(work, core.bytes) + gradient.bytes, copies), products)
    return LayerCost(kind.name, saved, peak, kept_choices(kind, plan))


def _scores(attention: Attention, plan: Plan, memory: MemoryTraits, scale: float) -> tuple[Number, Number, Number]:
    """Return what unfused attention keeps, what its backward pass recomputes, and what it works with."""
    entries = plan.tokens * attention.heads * plan.attention_length / plan.context / plan.tensor
    probabilities = memory.unfused_saved_bytes * scale * entries
    # Dropout keeps a mask of bytes and its output.
    dropped = (1 + 2 * scale) * entries if plan.attention_dropout else 0.0
    recomputed = plan.attention_recompute
    kept = choose(recomputed, 0.0, probabilities + dropped)
    return kept, choose(recomputed, probabilities, 0.0), memory.unfused_work_bytes * scale * entries


def _weight_gradient(kind: LayerKind, plan: Plan, memory: MemoryTraits, run: Run) -> Piece:
    """Return the largest gradient of a weight before it is accumulated."""
    if not run.weights_trained or memory.cached_weight_gradients:
        return NOTHING
    element = element_bytes(memory)
    gradient = element * largest_weight(kind, plan)
    return piece("workspace_weight_gradient", gradient, bytes_each=element, elements=None)


def _by_modules(plan: Plan, kind: LayerKind, saved: Callable[..., SavedBytes], *arguments: object) -> SavedBytes:
    """Return `saved(kind, recomputed modules, *arguments)` of the plan, entry by entry if plans differ in these
    modules."""
    if not plan.recompute_choices:
        return saved(kind, plan.recompute_modules, *arguments)

    def field_bytes(name: str) -> Number:
        return plan.by_recompute(lambda _, modules: float(getattr(saved(kind, modules, *arguments), name)))

    return SavedBytes(**{field.name: field_bytes(field.name) for field in fields(SavedBytes)})


def _spread(saved: SavedBytes, plan: Plan, attention: Attention | None) -> Number:
    """Return the bytes on one rank for a micro-batch, from bytes per token."""
    unsplit = saved.whole + saved.routed + saved.dispatched * plan.expert_tensor
    divided = saved.split / plan.tensor
    if attention:
        divided = divided + saved.groups * larger(1 / plan.tensor, 1 / attention.kv_heads)
    if type(saved.gathered) is not float or saved.gathered:
        divided = divided + saved.gathered * (1 - plan.whole_share)
    return plan.tokens * (unsplit * plan.whole_share + divided)


def tower_bytes(vision: VisionLayers, plan: Plan, memory: MemoryTraits, trained: Trained) -> Number:
    """Return the bytes of the vision tower: the Hugging Face module, whole on each rank. Of recompute, only the full
    one affects it."""
    element = int(element_bytes(memory))
    full: Flag = plan.of_tower().full_recompute
    if type(full) is bool:
        return plan.vision_patches * _bytes_per_patch(vision, element, trained, full)
    with_full, without = [_bytes_per_patch(vision, element, trained, each) for each in (True, False)]
    return plan.vision_patches * choose(full, with_full, without)


@lru_cache(maxsize=1024)
def _bytes_per_patch(vision: VisionLayers, element: int, trained: Trained, full_recompute: bool) -> float:
    form = EagerForm(element=element, residual=element)
    per_merged_token = eager_bytes(vision.merger, form) * trained.merger
    per_merged_token += vision.deep_stack * eager_bytes(vision.deep_stack_merger, form) * trained.deep_stack
    per_patch = per_merged_token / vision.patches_per_token
    for part in vision.merger_layers if trained.merger and full_recompute else ():
        kept = element * (part.kind.hidden + part.kind.inputs)
        per_patch += part.count * (kept - eager_bytes(part.kind, form)) / part.joined
    if not trained.tower:
        return per_patch
    for part in vision.blocks:
        is_checkpointed = full_recompute and part.checkpointed
        one = element * part.kind.hidden if is_checkpointed else eager_bytes(part.kind, form)
        per_patch += part.count * one / part.joined
    return per_patch + eager_bytes(vision.patch_embedding, form)
