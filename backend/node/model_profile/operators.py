"""Recorder of a running layer's operators. Their fields are those of backend/job/model/operators.py."""

from __future__ import annotations

import re
from typing import Any

QKV = {"q_proj", "k_proj", "v_proj", "query", "key", "value", "q", "k", "v", "wq", "wk", "wv"}
UP = {"gate_proj", "up_proj", "w1", "w3"}
NAMES = {
    "q_a_proj": "q_down",
    "q_b_proj": "q_up",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_b_proj": "kv_up",
    "o_proj": "o",
    "out_proj": "o",
    "wo": "o",
    "query_key_value": "qkv",
    "qkv_proj": "qkv",
    "c_attn": "qkv",
    "Wqkv": "qkv",
    "in_proj": "in",
    "gate_up_proj": "up",
    "fc1": "up",
    "fc_in": "up",
    "c_fc": "up",
    "dense_h_to_4h": "up",
    "down_proj": "down",
    "fc2": "down",
    "w2": "down",
    "fc_out": "down",
    "dense_4h_to_h": "down",
    "shared_expert_gate": "shared_gate",
    "router": "router",
    "linear_fc1": "up",
    "linear_fc2": "down",
}
ROW_PARALLEL = {"o", "down", "shared_down"}
WHOLE = {"router", "q_down", "kv_down", "shared_gate"}
EXPERT = re.compile(r"(^|\.)experts\.\d+\.")


class Recorder:
    """Operators of one layer in the order in which they run."""

    def __init__(self, layer: Any, hidden: Any, group: str) -> None:
        self.operators: list[dict[str, Any]] = []
        self.linears: list[str] = []
        self.covered: set[str] = set()
        self._layer = layer
        self._group = group
        self._hidden = hidden.shape[-1]
        self._tokens = max(hidden.numel() // hidden.shape[-1], 1)
        self._norms: set[int] = set()
        self._activated: dict[int, dict[str, Any]] = {}
        self._inputs: dict[tuple[str, int, str], dict[str, Any]] = {}
        self._kept: list[Any] = []
        self._experts: list[str] = []
        self._in_activation = False
        self.path = ""

    def linear(self, path: str, module: Any, value: Any, out: Any) -> None:
        """Record a projection. Those of one input to query, key and value, or to gate and up, are one operator."""
        weight = module.weight
        inputs, outputs = value.shape[-1], out.shape[-1]
        bias = 0 if getattr(module, "bias", None) is None else module.bias.numel()
        parent, _, last = path.rpartition(".")
        self.linears.append(path)
        self.covered.add(path)
        expert = EXPERT.search(path)
        if expert:
            self._expert_projection(path, expert, inputs, outputs, bias)
            return
        role = "qkv" if last in QKV else "up" if last in UP else ""
        if last in ("q_proj", "q") and self._has(parent, "kv_a_proj_with_mqa"):
            role = ""
        known = self._inputs.get((parent, id(value), role)) if role else None
        if known is not None:
            known["outputs"] += outputs
            known["bias"] += bias
            known["parts"] += 1
            return
        name = role or self._name(path, last, inputs, outputs)
        share = "whole" if name in WHOLE or self._group != "language" else "split"
        if "shared" in path and name in ("up", "down"):
            name = "shared_" + name
        row = name in ROW_PARALLEL and share == "split"
        operator = {
            "type": "Linear",
            "name": name,
            "inputs": inputs,
            "outputs": outputs,
            "share": share,
            "bias": 0 if row else bias,
            "whole_bias": bias if row else 0,
            "copies": 1,
            "active": 1,
            "parts": 1,
            "after_norm": id(value) in self._norms and inputs == self._hidden,
            "_path": path,
        }
        if weight.dim() == 2 and weight.numel() != inputs * outputs:
            operator["outputs"] = weight.numel() // inputs
        self._inputs[parent, id(value), role] = operator
        self._kept.append(value)
        self.operators.append(operator)

    def _has(self, parent: str, name: str) -> bool:
        try:
            return hasattr(self._layer.get_submodule(parent), name)
        except AttributeError:
            return False

    def _name(self, path: str, last: str, inputs: int, outputs: int) -> str:
        if last in NAMES and "linear_attn" not in path:
            return NAMES[last]
        attention = "attn" in path or "attention" in path
        if last in ("proj", "dense", "c_proj"):
            return "o" if attention else "down"
        if last in ("q_proj", "q"):
            return "q"
        if last == "gate" and outputs < inputs:
            return "router" if outputs > 1 else "shared_gate"
        return last

    def _expert_projection(self, path: str, expert: Any, inputs: int, outputs: int, bias: int) -> None:
        last = path.rpartition(".")[2]
        name = "expert_up" if last in UP or NAMES.get(last) == "up" else "expert_down"
        owner = path[: expert.start()] + ".experts" if expert.start() else "experts"
        copies = len(self._layer.get_submodule(owner.strip(".")))
        known = self._inputs.get((owner, 0, name))
        if known is None:
            operator = {
                "type": "Linear",
                "name": name,
                "inputs": inputs,
                "outputs": outputs,
                "share": "expert",
                "bias": bias,
                "whole_bias": 0,
                "copies": copies,
                "active": 1,
                "parts": 1,
                "after_norm": False,
            }
            self._inputs[owner, 0, name] = operator
            operator["_first"] = path
            operator["_modules"] = {last}
            self.operators.append(operator)
        elif last not in known["_modules"]:
            known["_modules"].add(last)
            known["outputs"] += outputs
            known["bias"] += bias
            known["parts"] += 1

    def norm(self, path: str, module: Any, value: Any, out: Any) -> None:
        """Record a normalisation."""
        self.covered.add(path)
        parameters = sum(parameter.numel() for parameter in module.parameters())
        width = out.numel() // self._tokens
        heads = out.shape[-1] != width and width != self._hidden
        self._norms.add(id(out))
        self._kept.append(out)
        previous = self.operators[-1] if self.operators else {}
        if heads and previous.get("type") == "Norm" and previous["heads"]:
            previous["width"] += width
            previous["parameters"] += parameters
            return
        kind = type(module).__name__
        self.operators.append(
            {
                "type": "Norm",
                "width": width,
                "parameters": parameters,
                "detached": False,
                "heads": heads,
                "layer_norm": "LayerNorm" in kind,
                "cast": kind.startswith("LP"),
                "_path": path,
            }
        )

    def attention(self, module: Any, query: Any, key: Any, value: Any, causal: bool, window: int) -> None:
        """Record an attention core."""
        if self.operators and self.operators[-1]["type"] == "Attention":
            # Packed images run one after the other, in several cores.
            return
        length = query.shape[-2]
        if not window and not causal and length * query.shape[0] < self._tokens:
            window = length
        latent = any(operator.get("name") == "kv_up" for operator in self.operators)
        storages = {tensor.untyped_storage()._cdata for tensor in (query, key, value)}
        self.covered.add(self.path)
        if latent:
            width = sum(op["outputs"] for op in self.operators if op.get("name") == "kv_down")
            norms = [op["width"] for op in self.operators if op["type"] == "Norm"]
            if norms and width > norms[-1]:
                self.operators.append({"type": "Keep", "width": width - norms[-1], "bytes": 2})
        self.operators.append(
            {
                "type": "Attention",
                "heads": query.shape[1],
                "kv_heads": key.shape[1],
                "key_dim": query.shape[-1],
                "value_dim": value.shape[-1],
                "causal": causal,
                "window": window,
                "packed": len(storages) == 1,
                "latent": latent,
            }
        )

    def activated(self, name: str, out: Any) -> None:
        """Record an activation."""
        last = out.shape[-1] if out.dim() else 1
        expert = bool(self._experts) or EXPERT.search(self.path + ".") is not None
        module = "moe" if expert else "shared_experts" if "shared" in self.path else "mlp"
        key = f"{module} {EXPERT.sub('', self.path)}"
        known = next((op for op in self.operators if op.get("_key") == key and expert), None)
        if known is not None:
            self._activated[id(out)] = known
            self._kept.append(out)
            return
        width = out.numel() // self._tokens if not EXPERT.search(self.path + ".") else last
        operator = {
            "type": "Activation",
            "width": max(width, 1),
            "gated": False,
            "module": module,
            "clamped": False,
            "_key": key,
            "_function": name,
            "_path": self.path,
        }
        self._activated[id(out)] = operator
        self._kept.append(out)
        self.operators.append(operator)

    def multiplied(self, inputs: list[Any]) -> None:
        """Mark an activation as gated when its output multiplies another tensor of its shape."""
        for left, right in (inputs, inputs[::-1]):
            operator = self._activated.get(id(left))
            if operator is not None and left.shape == right.shape:
                operator["gated"] = True

    def enter_experts(self, path: str, module: Any, args: Any) -> None:
        """Record the dispatch and the first projection of experts with joined weights."""
        import torch

        weights = [(name, value) for name, value in module.named_parameters(recurse=False) if value.dim() == 3]
        biases = {name: value for name, value in module.named_parameters(recurse=False) if value.dim() == 2}
        hidden = next(value for value in args if isinstance(value, torch.Tensor) and value.dtype.is_floating_point)
        chosen = [v for v in args if isinstance(v, torch.Tensor) and not v.dtype.is_floating_point and v.dim() >= 2]
        rows = hidden.numel() // hidden.shape[-1]
        active = chosen[0].shape[-1] if chosen else max(rows // self._tokens, 1)
        width, copies = hidden.shape[-1], weights[0][1].shape[0]
        self._experts.append(path)
        self.covered.add(path)
        self.operators.append({"type": "Dispatch", "hidden": width, "top_k": active, "experts": copies})
        inner = weights[-1][1].numel() // copies // width
        ups = weights[:-1]
        outputs = sum(weight.numel() // copies // width for _, weight in ups)
        bias = {name: value.numel() // copies for name, value in biases.items()}
        down = weights[-1][0]
        common = {
            "type": "Linear",
            "share": "expert",
            "whole_bias": 0,
            "copies": copies,
            "active": active,
            "after_norm": False,
        }
        self.operators.append(
            {
                **common,
                "name": "expert_up",
                "inputs": width,
                "outputs": outputs,
                "parts": max(outputs // inner, 1),
                "bias": sum(size for name, size in bias.items() if not name.startswith(down)),
            }
        )
        self._down = {
            **common,
            "name": "expert_down",
            "inputs": inner,
            "outputs": width,
            "parts": 1,
            "bias": sum(size for name, size in bias.items() if name.startswith(down)),
        }

    def leave_experts(self) -> None:
        """Record the last projection of experts with joined weights, and their activation if no kernel recorded it."""
        up = next(op for op in reversed(self.operators) if op.get("name") == "expert_up")
        if not any(op["type"] == "Activation" and op["module"] == "moe" for op in self.operators):
            self.operators.append(
                {
                    "type": "Activation",
                    "width": self._down["active"] * self._down["inputs"],
                    "gated": up["parts"] > 1,
                    "module": "moe",
                    "clamped": True,
                }
            )
        self.operators.append(self._down)
        self._experts.pop()

    def finish(self, top_k: int, mixings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return all operators, also those that need the whole layer."""
        if any(operator["type"] == "Linear" and "_first" in operator for operator in self.operators):
            self._separate_experts(top_k)
        self._add_router()
        for position, operator in enumerate(self.operators):
            if operator["type"] != "Norm" or operator["heads"] or operator["width"] != self._hidden:
                continue
            following = next((op for op in self.operators[position + 1 :] if op["type"] == "Linear"), None)
            operator["detached"] = following is not None and following["name"] in ("q_down", "q", "kv_down", "router")
        paths = [mixing["_path"] for mixing in mixings]
        kept = [
            op for op in self.operators if not (op["type"] == "Activation" and _within(op.get("_path", "-"), paths))
        ]
        for mixing in mixings:
            inside = [i for i, op in enumerate(kept) if _within(op.get("_path", "-"), [mixing["_path"]])]
            linears = [i for i in inside if kept[i]["type"] == "Linear"]
            index = linears[-1] if len(linears) > 1 else inside[0] if inside else len(kept)
            while index in inside and index > inside[0] and kept[index - 1]["type"] == "Norm":
                index -= 1
            kept.insert(index, mixing)
        return [{key: value for key, value in op.items() if not key.startswith("_")} for op in kept]

    def _add_router(self) -> None:
        """Add a router whose weight the code reads without calling its module."""
        dispatch = next((i for i, op in enumerate(self.operators) if op["type"] == "Dispatch"), None)
        if dispatch is None or any(op.get("name") == "router" for op in self.operators):
            return
        experts = self.operators[dispatch]["experts"]
        for path, module in self._layer.named_modules():
            weight = module._parameters.get("weight")
            if path not in self.covered and weight is not None and tuple(weight.shape) == (experts, self._hidden):
                bias = module._parameters.get("bias")
                router = {
                    "type": "Linear",
                    "name": "router",
                    "inputs": self._hidden,
                    "outputs": experts,
                    "share": "whole",
                    "bias": 0 if bias is None else bias.numel(),
                    "whole_bias": 0,
                    "copies": 1,
                    "active": 1,
                    "parts": 1,
                    "after_norm": False,
                }
                self.operators.insert(dispatch, router)
                return

    def _separate_experts(self, top_k: int) -> None:
        copies = 1
        for operator in self.operators:
            if "_first" in operator:
                operator["active"], copies = top_k, operator["copies"]
            elif operator["type"] == "Activation" and operator["module"] == "moe":
                operator["width"] *= top_k
        first = next(i for i, op in enumerate(self.operators) if op.get("name") == "expert_up")
        self.operators.insert(first, {"type": "Dispatch", "hidden": self._hidden, "top_k": top_k, "experts": copies})


def _within(path: str, parents: list[str]) -> bool:
    return any(path == parent or path.startswith(parent + ".") for parent in parents)
