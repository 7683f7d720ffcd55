"""Measurement of one layer of each kind in the model, in a forward and a backward pass."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from .cores import attention_cores
from .operators import Recorder
from .parts import Kind
from .shapes import CostMeter, Costs, dispatch_mode
from .static_operators import recurrence

SIZES: tuple[tuple[int, int], ...] = ((1, 128), (1, 192), (1, 256), (1, 320), (2, 128), (2, 192))
"""(batch, sequence) of the runs. They are more than the unknowns, which reveals a polynomial that does not fit."""
FIGURES = (
    *("saved_bytes", "shared_bytes", "forward_peak_bytes", "backward_peak_bytes"),
    *("forward_flops", "backward_flops", "forward_kernels", "backward_kernels", "forward_moved_bytes"),
    *("backward_moved_bytes", "recompute_saved_bytes", "recompute_peak_bytes", "recompute_backward_flops"),
    "recompute_backward_kernels",
)


class MeasuredRun:
    """Behaviour of the layers' forward methods in one run of the model."""

    def __init__(self, meter: CostMeter, implementation: str, size: tuple[int, int]) -> None:
        self.meter = meter
        self.implementation = implementation
        self.size = size
        self.seen: set[int] = set()

    def run(self, kind: Kind, layer: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        """Measure the first layer of each kind. The others return their input if it has the shape of the output."""
        hidden, key = _hidden(args, kwargs)
        if hidden is None:
            return forward(*args, **kwargs)
        if id(kind) in self.seen:
            if kind.keeps_shape:
                return _like(kind.output, hidden)
            return forward(*args, **kwargs)
        # The first run records operators only, because the recorder keeps tensors alive.
        records = kind.operators is None
        out, sample = measured(self.meter, kind, layer, forward, args, kwargs, key)
        self.seen.add(id(kind))
        if records:
            return out
        tokens = hidden.numel() // max(hidden.shape[-1], 1)
        batch = self.size[0]
        kind.samples.setdefault(self.implementation, {})[batch, tokens // batch] = sample
        return out


def install(kinds: list[Kind], order: list[tuple[Any, int]], holder: list[Any]) -> None:
    """Replace the forward method of each layer by one that measures it in the present run."""
    for layer, index in order:
        layer.forward = _forward(kinds[index], layer, layer.forward, holder)


def _forward(kind: Kind, layer: Any, forward: Any, holder: list[Any]) -> Any:
    def measured_forward(*args: Any, **kwargs: Any) -> Any:
        return holder[0].run(kind, layer, forward, args, kwargs)

    return measured_forward


def _hidden(args: Any, kwargs: Any) -> tuple[Any, Any]:
    import torch

    for key, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.dim() >= 2:
            return value, key
    return None, None


def _like(output: Any, hidden: Any) -> Any:
    if isinstance(output, tuple):
        return (hidden, *output[1:])
    if isinstance(output, list):
        return [hidden, *output[1:]]
    return hidden


def measured(
    meter: CostMeter, kind: Kind, layer: Any, forward: Any, args: Any, kwargs: Any, key: Any
) -> tuple[Any, dict[str, int]]:
    """Return the output of a layer, and the costs of its forward and backward passes."""
    shared = {meter.serial(tensor) for tensor in _tensors([*args, *kwargs.values()])}
    handles = [parameter.register_post_accumulate_grad_hook(_drop(meter)) for parameter in layer.parameters()]
    hidden = (args[key] if isinstance(key, int) else kwargs[key]).detach().requires_grad_()
    # A view, because some layers write into their input.
    inputs = hidden.view(hidden.shape)
    values = [inputs if position == key else value for position, value in enumerate(args)]
    named = {name: inputs if name == key else value for name, value in kwargs.items()}
    recorder = Recorder(layer, hidden, kind.group) if kind.operators is None else None
    hooks = _hook_modules(meter, layer, recorder)
    start = meter.live
    out, saved = _run_forward(meter, layer, recorder, lambda: forward(*values, **named))
    costs, ahead, ahead_peak = meter.costs, meter.total(), meter.peak - start
    live = meter.live
    back, back_peak = _run_backward(meter, out)
    for hook in hooks:
        hook.remove()
    others = shared - {meter.serial(hidden)}
    sample = {
        "saved_bytes": sum(size for serial, (_, size) in saved.items() if serial not in others),
        "shared_bytes": sum(size for serial, (_, size) in saved.items() if serial in others),
        # A checkpoint keeps the input. Its backward pass runs the layer forward again, and then backward.
        "recompute_saved_bytes": hidden.untyped_storage().nbytes(),
        "recompute_peak_bytes": max(ahead_peak, live - start + back_peak),
        **_costs_of_passes(ahead, ahead_peak, back, back_peak),
    }
    if recorder is not None:
        tokens = hidden.numel() // hidden.shape[-1]
        kind.hidden = hidden.shape[-1]
        kind.operators = recorder.finish(
            _top_k(layer), mixings(layer, recorder, costs, _bytes_by_module(saved), tokens)
        )
    for handle in handles:
        handle.remove()
    is_plain = not shared - {meter.serial(hidden), meter.serial(args[key] if isinstance(key, int) else kwargs[key])}
    return _keep_call(kind, _detached(out), hidden, (args, kwargs, key) if is_plain else None), sample


Saved = Dict[int, Tuple[str, int]]
"""Serial of a tensor that the backward pass needs -> the path of the module that saved it, and its bytes."""


def _run_forward(meter: CostMeter, layer: Any, recorder: Recorder | None, forward: Any) -> tuple[Any, Saved]:
    """Run the forward pass of a layer; return its output and the tensors that it saves, without parameters."""
    import torch

    own = {parameter.untyped_storage()._cdata for parameter in (*layer.parameters(), *layer.buffers())}
    saved: Saved = {}

    def pack(tensor: Any) -> Any:
        storage, serial = tensor.untyped_storage(), meter.serial(tensor)
        if storage._cdata not in own and serial not in saved:
            saved[serial] = (meter.path[-1], storage.nbytes())
        return tensor

    meter.costs, meter.peak = {}, meter.live
    meter.events = recorder
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = forward()
    meter.events = None
    # A branch that leads to no output has freed its tensors.
    alive = meter.alive()
    return out, {serial: entry for serial, entry in saved.items() if serial in alive}


def _bytes_by_module(saved: Saved) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for path, size in saved.values():
        sizes[path] = sizes.get(path, 0) + size
    return sizes


def _run_backward(meter: CostMeter, out: Any) -> tuple[Costs, int]:
    """Run the backward pass of a layer's output; return its costs and the peak of its bytes."""
    import torch

    outputs = [tensor for tensor in _tensors([out]) if tensor.requires_grad][:1]
    live = meter.live
    meter.costs, meter.peak = {}, live
    with torch.enable_grad():
        torch.autograd.backward(outputs, [torch.empty_like(tensor) for tensor in outputs])
    return meter.total(), meter.peak - live


def _costs_of_passes(ahead: Costs, ahead_peak: int, back: Costs, back_peak: int) -> dict[str, int]:
    return {
        "forward_peak_bytes": ahead_peak,
        "backward_peak_bytes": back_peak,
        "forward_flops": ahead.flops,
        "backward_flops": back.flops,
        "forward_kernels": ahead.kernels,
        "backward_kernels": back.kernels,
        "forward_moved_bytes": ahead.moved,
        "backward_moved_bytes": back.moved,
        "recompute_backward_flops": ahead.flops + back.flops,
        "recompute_backward_kernels": ahead.kernels + back.kernels,
    }


def _keep_call(kind: Kind, result: Any, hidden: Any, call: Any) -> Any:
    """Keep the output of a kind, and its arguments (`call`) if they are no tensors but the input. Return the output."""
    first = result[0] if isinstance(result, (tuple, list)) else result
    kind.keeps_shape = getattr(first, "shape", None) == hidden.shape
    kind.output = result
    if call is not None:
        args, kwargs, key = call
        kind.plain_call = (
            [... if i == key else v for i, v in enumerate(args)],
            {n: ... if n == key else v for n, v in kwargs.items()},
        )
    return result


def _drop(meter: CostMeter) -> Any:
    def drop(parameter: Any) -> None:
        if parameter.grad is not None:
            meter.forget(parameter.grad)
            parameter.grad = None

    return drop


def _detached(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (tuple, list)):
        return type(value)(map(_detached, value)) if type(value) in (tuple, list) else value
    return value


def _tensors(values: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_flatten

    return [value for value in tree_flatten(list(values))[0] if isinstance(value, torch.Tensor)]


def _top_k(layer: Any) -> int:
    for module in layer.modules():
        for name in ("top_k", "num_experts_per_tok", "moe_topk", "topk"):
            value = getattr(module, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return 1


def _hook_modules(meter: CostMeter, layer: Any, recorder: Recorder | None) -> list[Any]:
    """Add hooks that assign the costs of a running layer to its innermost module."""
    hooks = []
    for path, module in layer.named_modules():
        if path:
            hooks.append(module.register_forward_pre_hook(_enter(meter, path, recorder), with_kwargs=True))
            hooks.append(
                module.register_forward_hook(_leave(meter, path, recorder), always_call=True, with_kwargs=True)
            )
    return hooks


def role(module: Any) -> str:
    """Return a module's role as an operator: norm, linear, experts, activation, or an empty text."""
    name = type(module).__name__
    own = [value for value in module._parameters.values() if value is not None]
    if sum(value.dim() == 3 for value in own) > 1:
        return "experts"
    if "norm" in name.lower() and not any(True for _ in module.children()):
        return "norm"
    weight = module._parameters.get("weight")
    if weight is not None and weight.dim() == 2 and "Embedding" not in name:
        return "linear"
    if type(module).__module__.startswith(("torch.nn.modules.activation", "transformers.activations")):
        return "activation"
    return ""


def _enter(meter: CostMeter, path: str, recorder: Recorder | None) -> Any:
    def enter(module: Any, args: Any, kwargs: Any) -> None:
        meter.path.append(path)
        if recorder is not None:
            recorder.path = path
            if role(module) == "experts":
                recorder.enter_experts(path, module, [*args, *kwargs.values()])

    return enter


def _leave(meter: CostMeter, path: str, recorder: Recorder | None) -> Any:
    def leave(module: Any, args: Any, kwargs: Any, out: Any) -> None:
        meter.path.pop()
        if recorder is None:
            return
        recorder.path = meter.path[-1]
        tensors = _tensors([*args, *kwargs.values()])
        outputs = _tensors([out])
        if not tensors or not outputs:
            return
        module_role = role(module)
        if module_role == "experts":
            recorder.leave_experts()
        elif module_role == "norm":
            recorder.norm(path, module, tensors[0], outputs[0])
        elif module_role == "linear":
            recorder.linear(path, module, tensors[0], outputs[0])

    return leave


def mixings(
    layer: Any, recorder: Recorder, costs: dict[str, Costs], saved: dict[str, int], tokens: int
) -> list[dict[str, Any]]:
    """Return the operators that are no projection, norm, attention core, activation or expert.

    These modules have their own code for matrix products or convolutions, or other parameters.
    """
    operators = []
    for path, module in layer.named_modules():
        if not path or path in recorder.covered or role(module) or _convolves(module):
            continue
        inner = [path, *(f"{path}.{name}" for name, child in module.named_children() if _convolves(child))]
        own = [value for value in module._parameters.values() if value is not None]
        total = Costs()
        for child in inner:
            total.add(costs.get(child, Costs()))
        if not (total.flops or len(inner) > 1 or any(value.dim() for value in own)):
            continue
        parameters = sum(value.numel() for value in own)
        parameters += sum(p.numel() for c in module.children() if _convolves(c) for p in c.parameters())
        known = recurrence(module, parameters)
        if known is not None:
            operators.append({**known, "_path": path})
            continue
        operators.append(
            {
                "type": "Mixing",
                "name": type(module).__name__,
                "parameters": parameters,
                "flops": total.flops / tokens,
                "saved_bytes": sum(saved.get(child, 0) for child in inner) / tokens,
                "moved_bytes": total.moved / tokens,
                "kernels": total.kernels,
                "_path": path,
            }
        )
    return operators


def _convolves(module: Any) -> bool:
    weight = module._parameters.get("weight")
    return "Conv" in type(module).__name__ and weight is not None and weight.dim() > 2


def run_model(measured_run: MeasuredRun, call: Any) -> None:
    """Run a model, or a tower of it, and measure its layers."""
    import torch

    meter = measured_run.meter
    with torch.no_grad(), attention_cores(meter, measured_run.implementation), dispatch_mode(meter):
        call()
