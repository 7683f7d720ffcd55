"""The towers of a model (its lists of layers) and the kinds of layer in them."""

from __future__ import annotations

import re
from typing import Any

POSITION = re.compile(r"(^|_)(idx|index|layer_id|layer_number|layer_num)($|_)")
"""Attributes with the index of a layer. They do not belong to its structure."""


class Kind:
    """Layers of equal structure and equal settings."""

    def __init__(self, layer: Any, group: str) -> None:
        self.layer = layer
        self.group = group
        self.count = 0
        self.operators: Any = None
        self.keeps_shape = False
        self.output: Any = None
        self.samples: dict[str, dict[tuple[int, int], dict[str, int]]] = {}
        self.hidden: Any = None
        self.plain_call: Any = None
        """Arguments of a layer that takes only hidden states. An ellipsis is their place."""


class Tower:
    """A list of layers."""

    def __init__(self, name: str, layers: Any) -> None:
        self.name = name
        self.layers = layers
        self.order: list[int] = []
        self.problem: dict[str, Any] | None = None

    def runs(self) -> list[list[int]]:
        """Return the order of kinds as [kind, length] runs."""
        runs: list[list[int]] = []
        for kind in self.order:
            if runs and runs[-1][0] == kind:
                runs[-1][1] += 1
            else:
                runs.append([kind, 1])
        return runs


def find_towers(model: Any, group_of: Any) -> tuple[list[Tower], list[Kind]]:
    """Return the outermost lists of layers, and the kinds of their layers."""
    import torch

    towers: list[Tower] = []
    kinds: list[Kind] = []
    signatures: dict[Any, int] = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList) or len(module) == 0:
            continue
        if any(name.startswith(tower.name + ".") for tower in towers):
            continue
        if not all(any(True for _ in layer.parameters()) for layer in module):
            continue
        tower = Tower(name, module)
        # The blocks of Qwen2.5-VL are equal, but some of them get the whole image.
        full = getattr(model.get_submodule(name.rpartition(".")[0]), "fullatt_block_indexes", None) or ()
        towers.append(tower)
        for position, layer in enumerate(module):
            group = group_of(f"{name}.{position}.")
            signature = (group, position in full, _signature(layer))
            if signature not in signatures:
                signatures[signature] = len(kinds)
                kinds.append(Kind(layer, group))
            index = signatures[signature]
            kinds[index].count += 1
            tower.order.append(index)
    return towers, kinds


def _signature(layer: Any) -> tuple[Any, ...]:
    """Return a value that is equal for layers of equal structure and settings."""
    parts = []
    for name, module in layer.named_modules():
        settings = tuple(
            sorted(
                (key, repr(value))
                for key, value in vars(module).items()
                if isinstance(value, (bool, int, float, str, tuple, type(None)))
                and not POSITION.search(key)
                and not key.startswith("_")
            )
        )
        tensors = tuple(
            (key, tuple(value.shape), str(value.dtype))
            for key, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        )
        parts.append((name, type(module).__name__, settings, tensors))
    return tuple(parts)


def outside(model: Any, towers: list[Tower], group_of: Any) -> list[dict[str, Any]]:
    """Return the modules with parameters that are in no tower. Tied parameters count once."""
    inside = tuple(tower.name + "." for tower in towers)
    seen: set[int] = set()
    modules = []
    for name, module in model.named_modules():
        own = [parameter for parameter in module._parameters.values() if parameter is not None]
        fresh = [parameter for parameter in own if id(parameter) not in seen]
        seen.update(map(id, fresh))
        if own and not (name + ".").startswith(inside):
            modules.append(
                {
                    "module": name,
                    "class": type(module).__name__,
                    "role": _role(module, model),
                    "group": group_of(name + "."),
                    "parameters": sum(parameter.numel() for parameter in fresh),
                    "shapes": {
                        key: list(value.shape) for key, value in module._parameters.items() if value is not None
                    },
                    "tied": len(fresh) < len(own),
                }
            )
    return modules


def _role(module: Any, model: Any) -> str:
    """Return the role of a module outside of the towers."""
    for name, role in (("get_input_embeddings", "embedding"), ("get_output_embeddings", "output")):
        try:
            if getattr(model, name)() is module:
                return role
        except (AttributeError, NotImplementedError):
            continue
    kind = type(module).__name__
    for word, role in (("Embedding", "positions"), ("Norm", "norm"), ("Conv", "convolution"), ("Linear", "linear")):
        if word in kind:
            return role
    return "other"
