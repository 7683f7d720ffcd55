"""The operators of a layer that a checkpoint runs again."""

from dataclasses import replace
from functools import lru_cache

from backend.estimate.model.adapters import adapted_linears
from backend.estimate.model.layers import LayerKind
from backend.job.model.operators import Attention, Linear, Parameters


@lru_cache(maxsize=256)
def until_saved(kind: LayerKind, targets: str | None) -> LayerKind:
    """Return the layer without a last projection that runs after the last tensor is saved.

    An adapter of that projection runs after it and saves its input again (PEFT 0.18.1 tuners/lora/layer.py forward).
    The output of routed experts is saved, because it is multiplied by their shares.
    """
    # A layer's list may end with weights that run nothing, as that of Apertus does.
    place = max(place for place, operator in enumerate(kind.operators) if not isinstance(operator, Parameters))
    last = kind.operators[place]
    if not isinstance(last, Linear) or last.share == "expert":
        return kind
    if targets is not None and any(linear is last for linear, _ in adapted_linears(kind, targets)):
        return kind
    return replace(kind, operators=(*kind.operators[:place], *kind.operators[place + 1 :]))


@lru_cache(maxsize=256)
def every_second_product(kind: LayerKind) -> LayerKind:
    """Return the layer without the products whose outputs torchtitan's operator-wise checkpoints save.

    They save the first, the third and so on of the matrix products of a layer, and the output of attention; the caller
    leaves out its products. The router's product is always repeated, and so are the grouped products of experts
    (pytorch/torchtitan f738a03bf, torchtitan/models/llama3/infra/parallelize.py _apply_ac_to_transformer_block).
    """
    attention = next((operator for operator in kind.operators if isinstance(operator, Attention)), None)
    operators, count = [], 0
    for operator in kind.operators:
        if not isinstance(operator, Linear) or operator.share == "expert" or operator.name == "router":
            operators.append(operator)
            continue
        sizes = _products(operator, attention)
        repeated = [size for place, size in enumerate(sizes, count) if place % 2]
        count += len(sizes)
        if repeated:
            operators.append(replace(operator, outputs=sum(repeated), parts=len(repeated)))
    return replace(kind, operators=tuple(operators))


def _products(linear: Linear, attention: Attention | None) -> list[int]:
    """Return the outputs of the products that a projection stands for."""
    if linear.name == "qkv" and attention:
        keys, values = attention.kv_heads * attention.key_dim, attention.kv_heads * attention.value_dim
        return [linear.outputs - keys - values, keys, values]
    return [linear.outputs // linear.parts] * linear.parts
