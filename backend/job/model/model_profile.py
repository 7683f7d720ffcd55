"""The shape of a model from its profile: what torch counted on a node (backend/node/model_profile).

A job stores the part of the profile that the estimate needs. A family that config.json alone describes needs none.
"""

import hashlib
import json
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, cast

from backend.job.model.attention_shape import FullAttention
from backend.job.model.linear_shape import GatedDeltaNet
from backend.job.model.operators import (
    Activation,
    Attention,
    Dispatch,
    Keep,
    Linear,
    Mixing,
    Norm,
    NormWeights,
    Operator,
    Parameters,
    Recurrence,
)
from backend.job.model.shape import Experts, Ffn, LayerShape, ModelShape
from backend.job.model.vision import MOST_LAYERS, TOWERS, parse_vision
from backend.job.problems import Problem, ProblemsError, quoted

FIELD = "model.profile"
FORMAT = 1
MOST_ELEMENTS = 1 << 50
"""Upper limit of every size."""
_OPERATORS: Mapping[str, type[Operator]] = {
    kind.__name__: kind
    for kind in (Norm, Linear, Attention, Recurrence, Mixing, Parameters, Activation, Dispatch, Keep)
}
_FIELDS: Mapping[type[Operator], Mapping[str, tuple[object, bool]]] = {
    kind: {each.name: (typing.get_type_hints(kind)[each.name], each.default is MISSING) for each in fields(kind)}
    for kind in _OPERATORS.values()
}
"""For every operator, the type of every field, and whether it has no default."""
_MAY_BE_ZERO = frozenset({"bias", "whole_bias", "window", "parameters", "count", "kernels"})
_NORMS: Mapping[int, NormWeights] = {0: "none", 1: "scale", 2: "scale_and_shift"}
"""Weights per element."""


def config_digest(hf_config: Mapping[str, Any]) -> str:
    """Return the digest of a config.json that does not depend on its spaces and the order of its keys."""
    return hashlib.sha256(json.dumps(dict(hf_config), sort_keys=True).encode()).hexdigest()


def profiled_shape(profile: Mapping[str, Any], hf_config: Mapping[str, Any]) -> ModelShape:
    """Return the shape that a profile describes.

    Raises ProblemsError: bad_model_profile where the profile is damaged. Where it cannot describe this model:
    profile_of_other_config, profile_has_towers, profile_has_unknown_layer, profile_not_run, profile_incomplete.
    """
    if profile.get("profile") != FORMAT:
        raise _damaged("profile", profile.get("profile"))
    if profile.get("digest") != config_digest(hf_config):
        raise _refusal("profile_of_other_config")
    kinds, order = _decoder(profile, str(hf_config.get("model_type") or ""))
    embedding, output = _part(profile, "embedding"), _part(profile, "output")
    hidden = _size(embedding, "embedding.width", "width")
    if any(kind["hidden"] != hidden for kind in kinds):
        raise _refusal("profile_incomplete", part="hidden")
    outside = _outside(profile)
    norm = _NORMS.get(outside.pop("norm", 0) // hidden)
    if norm is None:
        raise _refusal("profile_incomplete", part="norm")
    vocab, tied = _size(embedding, "embedding.rows", "rows"), profile.get("tied") is True
    head = outside.pop("output", 0) if not tied else 0
    shape = ModelShape(
        model_type=str(hf_config.get("model_type") or ""),
        hidden=hidden,
        vocab=vocab,
        tied=tied,
        kinds=tuple(_layer(kind, norm) for kind in kinds),
        order=order,
        positions=outside.pop("positions", 0) // hidden,
        head_bias=not tied and head == _size(output, "output.rows", "rows") * (hidden + 1),
        vision=parse_vision(hf_config, hidden),
    )
    outside.pop("embedding", None)
    if any(outside.values()):
        raise _refusal("profile_incomplete", part=", ".join(sorted(outside)))
    return shape


def _decoder(profile: Mapping[str, Any], model_type: str) -> tuple[list[dict[str, Any]], tuple[int, ...]]:
    """Return the kinds of decoder layers, and the index of the kind of every layer."""
    kinds = [_kind(index, kind) for index, kind in enumerate(_list(profile, "kinds"))]
    orders = [_order(index, tower, len(kinds)) for index, tower in enumerate(_list(profile, "towers"))]
    others = [order for order in orders if order and kinds[order[0]]["group"] != "language"]
    decoders = [order for order in orders if order and order not in others]
    if len(decoders) != 1 or (others and model_type not in TOWERS):
        raise _refusal("profile_has_towers", towers=len(orders))
    used = sorted(set(decoders[0]))
    if stopped := next((kinds[index] for index in used if not kinds[index]["is_complete"]), None):
        raise _refusal("profile_not_run", layer=stopped["class"])
    if any(kinds[index]["saves_pairs"] for index in used):
        # Its own code computes the whole matrix of scores (Bloom), which the estimate does not know.
        raise _refusal("profile_incomplete", part="token_pair")
    return [kinds[index] for index in used], tuple(used.index(index) for index in decoders[0])


def _kind(index: int, kind: object) -> dict[str, Any]:
    name = f"kinds[{index}]"
    if not isinstance(kind, Mapping):
        raise _damaged(name, kind)
    operators = tuple(
        _operator(f"{name}.operators[{number}]", operator, str(kind.get("class")))
        for number, operator in enumerate(_list(kind, "operators", name))
    )
    if not any(isinstance(operator, Linear) for operator in operators):
        # Its matrix products are in an operator that the node does not report, as in nn.GRU.
        raise _refusal("profile_incomplete", part=str(kind.get("class")))
    saved_bytes, saves_pairs = _saved_bytes(name, kind)
    return {
        "class": str(kind.get("class")),
        "group": str(kind.get("group")),
        "hidden": kind.get("hidden"),
        "operators": operators,
        "saved_bytes": saved_bytes,
        "saves_pairs": saves_pairs,
        "is_complete": kind.get("in_execution_order") is True,
    }


def _saved_bytes(name: str, kind: Mapping[str, Any]) -> tuple[float, bool]:
    """Return the measured bytes per token, and whether there are bytes per pair of tokens. A layer without attention
    was measured with sdpa only."""
    figures: Any = kind.get("figures") or {}
    try:
        saved = figures.get("flash_attention_2", figures.get("sdpa", {})).get("saved_bytes", {})
        token, pair = saved.get("token", 0), saved.get("token_pair", 0)
    except AttributeError as error:
        raise _damaged(f"{name}.figures", figures) from error
    if isinstance(token, bool) or not isinstance(token, int | float) or not 0 <= token <= MOST_ELEMENTS:
        raise _damaged(f"{name}.figures", token)
    return float(token), bool(pair)


def _operator(name: str, operator: object, layer: str) -> Operator:
    if not isinstance(operator, Mapping):
        raise _damaged(name, operator)
    kind = _OPERATORS.get(str(operator.get("type")))
    if kind is None:
        raise _refusal("profile_has_unknown_layer", layer=layer, part=str(operator.get("name", operator.get("type"))))
    values = {key: value for key, value in operator.items() if key != "type"}
    for key, (annotation, is_needed) in _FIELDS[kind].items():
        if key not in values and is_needed:
            raise _damaged(f"{name}.{key}", None)
        if key in values and not _fits(annotation, values[key], 0 if key in _MAY_BE_ZERO else 1):
            raise _damaged(f"{name}.{key}", values[key])
    if unknown := sorted(values.keys() - _FIELDS[kind].keys()):
        raise _damaged(f"{name}.{unknown[0]}", values[unknown[0]])
    return kind(**values)


def _fits(annotation: object, value: object, least: int) -> bool:
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_ELEMENTS
    if annotation is int:
        return type(value) is int and least <= value <= MOST_ELEMENTS
    if typing.get_origin(annotation) is Literal:
        return value in typing.get_args(annotation)
    return isinstance(value, str) and len(value) <= 100


def _layer(kind: Mapping[str, Any], norm: NormWeights) -> LayerShape:
    """Return a kind of layer with what rules read of it: heads, FFN, experts."""
    operators: tuple[Operator, ...] = kind["operators"]
    return LayerShape(
        attention=_attention(operators),
        ffn=_ffn(operators),
        norm=norm,
        operators=operators,
        saved_bytes=kind["saved_bytes"],
    )


def _attention(operators: Iterable[Operator]) -> FullAttention | GatedDeltaNet | None:
    """Return the attention of a layer; None if it mixes tokens in another way, or not at all."""
    for operator in operators:
        if isinstance(operator, Attention):
            return FullAttention(
                heads=operator.heads,
                kv_heads=operator.kv_heads,
                head_dim=operator.key_dim,
                window=operator.window,
            )
        if isinstance(operator, Recurrence):
            return GatedDeltaNet(
                key_heads=operator.key_heads,
                value_heads=operator.value_heads,
                key_dim=operator.key_dim,
                value_dim=operator.value_dim,
                convolution=operator.convolution,
            )
    return None


def _ffn(operators: Sequence[Operator]) -> Ffn | Experts:
    activations = [operator for operator in operators if isinstance(operator, Activation)]
    for operator in operators:
        if isinstance(operator, Dispatch):
            down = next((o for o in operators if isinstance(o, Linear) and o.name == "expert_down"), None)
            gated = any(each.gated for each in activations if each.module == "moe")
            width = down.inputs if down else 0
            return Experts(count=operator.experts, top_k=operator.top_k, width=width, gated=gated)
    wide = max(activations, key=lambda each: each.width, default=None)
    return Ffn(width=wide.width if wide else 0, gated=bool(wide and wide.gated))


def _outside(profile: Mapping[str, Any]) -> dict[str, int]:
    """Return the parameters of the language model's modules outside of its layers, by role."""
    by_role: dict[str, int] = {}
    for index, module in enumerate(_list(profile, "outside")):
        if not isinstance(module, Mapping):
            raise _damaged(f"outside[{index}]", module)
        if module.get("group") == "language":
            role, count = str(module.get("role")), _size(module, f"outside[{index}].parameters", "parameters", least=0)
            by_role[role] = by_role.get(role, 0) + count
    return by_role


def _order(index: int, tower: object, kinds: int) -> tuple[int, ...]:
    order: list[int] = []
    for number, run in enumerate(_list(tower, "order", f"towers[{index}]")):
        name = f"towers[{index}].order[{number}]"
        is_pair = isinstance(run, Sequence) and len(run) == 2 and all(type(number) is int for number in run)
        if not is_pair or not 0 <= cast(list[int], run)[0] < kinds or not 0 < cast(list[int], run)[1] <= MOST_LAYERS:
            raise _damaged(name, run)
        kind, count = cast(list[int], run)
        order += [kind] * count
    if len(order) > MOST_LAYERS:
        raise _damaged(f"towers[{index}].order", len(order))
    return tuple(order)


def _list(owner: object, key: str, name: str = "") -> Sequence[object]:
    value = owner.get(key) if isinstance(owner, Mapping) else None
    if not isinstance(value, list | tuple):
        raise _damaged(f"{name}.{key}".strip("."), value)
    return value


def _part(profile: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = profile.get(key)
    if not isinstance(value, Mapping):
        raise _refusal("profile_incomplete", part=key)
    return value


def _size(owner: Mapping[str, Any], name: str, key: str, least: int = 1) -> int:
    value = owner.get(key)
    if type(value) is not int or not least <= value <= MOST_ELEMENTS:
        raise _damaged(name, value)
    return value


def _damaged(key: str, value: object) -> ProblemsError:
    return _refusal("bad_model_profile", key=key, value=quoted(value))


def _refusal(code: str, **values: object) -> ProblemsError:
    return ProblemsError([Problem(code=code, field=FIELD, values=values)])
