"""LoRA adapters and 4-bit base weights, as LLaMA-Factory 0.9.5 sets them up through PEFT and bitsandbytes."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from backend.estimate.memory.stage import Trained
from backend.estimate.model.layers import LayerKind, ModelLayers, VisionLayers, counted_kinds, held_kinds, operators_of
from backend.estimate.model.parameters import layer_counts, vision_parameters
from backend.estimate.model.streams import MIXERS
from backend.job.memory_traits import SCALES_BYTES
from backend.job.model.operators import Attention, Linear

PACKED_BYTES = 0.5
"""A 4-bit weight without its scales."""
NF4_BYTES = PACKED_BYTES + SCALES_BYTES
"""A 4-bit weight and its scales."""

_NAMES = {
    "o": "o_proj",
    "up": "up_proj",
    "down": "down_proj",
    "shared_down": "down_proj",
    "shared_gate": "shared_expert_gate",
    "expert_down": "down_proj",
    "q": "q_proj",
    "q_down": "q_a_proj",
    "q_up": "q_b_proj",
    "kv_down": "kv_a_proj_with_mqa",
    "kv_up": "kv_b_proj",
}


def adapter_parameters(layers: ModelLayers, rank: int, targets: str, trained: Trained, *, by_path: bool = False) -> int:
    """Return the parameters of LoRA adapters of this rank on the named modules (Hugging Face's names, or `all`).

    `all` is every nn.Linear except the output layer (model/model_utils/misc.py find_all_linear_modules). Routed experts
    are bare parameters in transformers 5 and have no adapters; most routers are no nn.Linear and have none either.
    Experts of code in a model's folder are nn.Linear.

    In a vision tower that is not frozen the blocks have adapters. LLaMA-Factory adapts modules by the last part of
    their names. So a merger that is not frozen has adapters on the modules whose names the language model or the blocks
    have, too. `by_path`: ms-swift adapts all linear layers of each part that is not frozen (4.6.0
    get_multimodal_target_regex).
    """
    total = 0
    if trained.language:
        total += sum(count * _adapters(kind, rank, targets) for kind, count in held_kinds(layers))
        total += _adapters(layers.stem, rank, targets) if layers.stem else 0
        total += _adapters(_mean_of_streams(layers.output), rank, targets)
    vision = layers.vision
    if vision and trained.tower:
        total += sum(part.count * _adapters(part.kind, rank, targets) for part in vision.blocks)
    if vision and (trained.deep_stack if by_path else trained.tower):
        total += vision.deep_stack * _adapters(vision.deep_stack_merger, rank, targets)
    if vision and trained.merger and vision.merger_linears != "none":
        has_names = by_path or (vision.merger_linears == "names_of_blocks" and trained.tower)
        total += _adapters(vision.merger, rank, targets if has_names else _found(layers, vision, targets, trained))
    return total


def _found(layers: ModelLayers, vision: VisionLayers, targets: str, trained: Trained) -> str:
    """Return the targets, with the names in the trained parts beside the merger in place of `all`."""
    if targets != "all":
        return targets
    kinds = [kind for kind, _ in held_kinds(layers)] if trained.language else []
    kinds += [part.kind for part in vision.blocks] if trained.tower else []
    return ",".join(sorted({name for kind in kinds for _, name, _ in _named_modules(kind)}))


@lru_cache(maxsize=256)
def _mean_of_streams(output: LayerKind) -> LayerKind:
    """Return the projections of the streams' mean after the last layer, whose names are those in the layers."""
    return replace(output, operators=tuple(each for each in operators_of(output, Linear) if each.name in MIXERS))


CopiedPart = Literal["embedding", "output", "tower", "merger"]
COPIED_PARTS: Mapping[str, CopiedPart] = {
    **dict.fromkeys(("embed_tokens", "wte", "word_embeddings"), "embedding"),
    **dict.fromkeys(("lm_head", "output_layer"), "output"),
    **dict.fromkeys(("visual", "vision_tower", "vision_model", "vpm"), "tower"),
    **dict.fromkeys(("merger", "multi_modal_projector", "mlp1", "resampler"), "merger"),
}
"""Names of modules that PEFT may train whole beside adapters, and the part of the model that they are."""


def copied_parts(names: str) -> frozenset[CopiedPart]:
    """Return the parts of the model that these modules are, separated by commas. Unknown names are left out."""
    known = (COPIED_PARTS.get(name.strip()) for name in names.split(","))
    return frozenset(part for part in known if part)


def copied_parameters(layers: ModelLayers, parts: Collection[CopiedPart]) -> int:
    """Return the parameters of the copies that PEFT trains; the frozen modules stay beside them (0.18.1 utils/other.py
    ModulesToSaveWrapper: original_module, and its deepcopy in modules_to_save)."""
    tower, merger, _ = vision_parameters(layers.vision) if layers.vision else (0, 0, 0)
    sizes = {"embedding": layers.embedding, "output": layers.embedding, "tower": tower, "merger": merger}
    return sum(sizes[part] for part in parts)


def quantised_parameters(layers: ModelLayers) -> int:
    """Return the elements that 4-bit loading packs: the matrices of every nn.Linear except the output layer."""
    total = sum(count * matrices(kind) for kind, count in held_kinds(layers))
    total += matrices(layers.stem) if layers.stem else 0
    total += matrices(_mean_of_streams(layers.output))
    vision = layers.vision
    if vision:
        total += sum(part.count * matrices(part.kind) for part in vision.blocks) + matrices(vision.merger)
        total += vision.deep_stack * matrices(vision.deep_stack_merger)
    return total


def routed_parameters(layers: ModelLayers) -> int:
    """Return the parameters of routed experts."""
    return sum(count * layer_counts(kind).expert for kind, count in counted_kinds(layers))


def _modules(kind: LayerKind) -> list[Linear]:
    operators = (operator for operator in kind.operators if isinstance(operator, Linear))
    return [
        linear
        for linear in operators
        if (linear.share != "expert" or linear.single)
        and (linear.name not in ("router", "merge_convolution") or linear.modules)
    ]


def matrices(kind: LayerKind) -> int:
    """Return the elements of a layer that 4-bit loading packs."""
    size = sum(linear.copies * linear.inputs * linear.outputs for linear in _modules(kind))
    return size + (matrices(kind.of_images) if kind.of_images else 0)


def _adapters(kind: LayerKind, rank: int, targets: str) -> int:
    size = sum(linear.copies * rank * (linear.inputs + outputs) for linear, outputs in adapted_linears(kind, targets))
    return size + (_adapters(kind.of_images, rank, targets) if kind.of_images else 0)


def adapted_linears(kind: LayerKind, targets: str) -> Iterator[tuple[Linear, int]]:
    """Yield every module of a layer that has an adapter: its projection, which may join several modules, and its
    outputs. Those that read images are left out (LayerKind.of_images)."""
    names = None if targets == "all" else {name.strip() for name in targets.split(",")}
    for linear, name, outputs in _named_modules(kind):
        if names is None or name in names:
            yield linear, outputs


def _named_modules(kind: LayerKind) -> Iterator[tuple[Linear, str, int]]:
    """Yield every module that can have an adapter: its projection, its name, and its outputs."""
    for linear in _modules(kind):
        for name, outputs in _parts(linear, kind):
            yield linear, name, outputs


def _parts(linear: Linear, kind: LayerKind) -> Iterator[tuple[str, int]]:
    """Yield the Hugging Face modules that a projection joins, with their outputs."""
    if linear.modules:
        yield from zip(linear.modules, _outputs(linear, kind), strict=True)
    elif linear.parts == 3:
        [attention] = operators_of(kind, Attention)
        keys, values = attention.kv_heads * attention.key_dim, attention.kv_heads * attention.value_dim
        yield from (("q_proj", linear.outputs - keys - values), ("k_proj", keys), ("v_proj", values))
    elif linear.name == "cross_kv":
        yield from (("k_proj", linear.outputs // 2), ("v_proj", linear.outputs // 2))
    elif linear.parts == 2 and linear.name == "qkv":
        [attention] = operators_of(kind, Attention)
        keys = attention.kv_heads * attention.key_dim
        yield from (("q_proj", linear.outputs - keys), ("k_proj", keys))
    elif linear.parts == 2:
        yield from (("gate_proj", linear.outputs // 2), ("up_proj", linear.outputs // 2))
    else:
        yield _NAMES.get(linear.name, linear.name), linear.outputs


def _outputs(linear: Linear, kind: LayerKind) -> tuple[int, ...]:
    """Return the outputs of the named modules of a projection: queries, keys and values apart, keys and values joined,
    or equal shares."""
    if linear.name != "qkv" or linear.parts == 1:
        return (linear.outputs // linear.parts,) * linear.parts
    [attention] = operators_of(kind, Attention)
    keys = attention.kv_heads * attention.key_dim
    queries = linear.outputs - 2 * keys
    return (queries, keys, keys) if linear.parts == 3 else (queries, 2 * keys)
