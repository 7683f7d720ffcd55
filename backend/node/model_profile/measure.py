"""One layer of each kind is run in the model, forward and backward, and what it costs is measured."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from .cores import attention_cores
from .operators import Recorder
from .parts import Kind
from .shapes import Costs, Watch, dispatch_mode

SIZES = ((1, 64), (1, 128), (1, 256), (2, 64), (2, 128))
"""(batch, sequence) of the runs; the last one checks the polynomials through the others."""
FIGURES = (
    *("saved_bytes", "shared_bytes", "forward_peak_bytes", "backward_peak_bytes"),
    *("forward_flops", "backward_flops", "forward_kernels", "backward_kernels", "forward_moved_bytes"),
    *("backward_moved_bytes", "recompute_saved_bytes", "recompute_peak_bytes", "recompute_backward_flops"),
    "recompute_backward_kernels",
)


class Probe:
    """What the layers' forward methods do in one run of the model."""

    def __init__(self, watch: Watch, implementation: str, size: tuple[int, int]) -> None:
        self.watch = watch
        self.implementation = implementation
        self.size = size
        self.seen: set[int] = set()

    def run(self, kind: Kind, layer: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        """Measure the first layer of each kind; the others return their input where this has the output's shape."""
        hidden, key = _hidden(args, kwargs)
        if hidden is None:
            return forward(*args, **kwargs)
        if id(kind) in self.seen:
            if kind.keeps_shape:
                return _like(kind.output, hidden)
            return forward(*args, **kwargs)
        self.seen.add(id(kind))
        out, sample = measured(self.watch, kind, layer, forward, args, kwargs, key)
        first = out[0] if isinstance(out, (tuple, list)) else out
        kind.keeps_shape = getattr(first, "shape", None) == hidden.shape
        kind.output = out
        tokens = hidden.numel() // max(hidden.shape[-1], 1)
        batch = self.size[0]
        kind.samples.setdefault(self.implementation, {})[batch, tokens // batch] = sample
        return out


def install(kinds: list[Kind], order: list[tuple[Any, int]], holder: list[Any]) -> None:
    """Give each layer a forward method that asks the probe of the present run."""
    for layer, index in order:
        layer.forward = _forward(kinds[index], layer, layer.forward, holder)


def _forward(kind: Kind, layer: Any, forward: Any, holder: list[Any]) -> Any:
    def probed(*args: Any, **kwargs: Any) -> Any:
        return holder[0].run(kind, layer, forward, args, kwargs)

    return probed


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


def measured(watch: Watch, kind: Kind, layer: Any, forward: Any, args: Any, kwargs: Any, key: Any) -> tuple[Any, dict[str, int]]:
    """Return the output of a layer and what its forward and backward passes cost."""
    import torch
    from torch.utils import checkpoint

    own = {parameter.untyped_storage()._cdata for parameter in layer.parameters()}
    own |= {buffer.untyped_storage()._cdata for buffer in layer.buffers()}
    arguments = [*args, *kwargs.values()]
    shared = {tensor.untyped_storage()._cdata for tensor in _tensors(arguments)}
    sample: dict[str, int] = {}
    handles = [parameter.register_post_accumulate_grad_hook(_drop(watch)) for parameter in layer.parameters()]
    for prefix in ("", "recompute_"):
        hidden = (args[key] if isinstance(key, int) else kwargs[key]).detach().requires_grad_()
        # A copy, because some layers write into their input.
        given = hidden.view(hidden.shape)
        values = [given if position == key else value for position, value in enumerate(args)]
        named = {name: given if name == key else value for name, value in kwargs.items()}
        inner = {hidden.untyped_storage()._cdata}
        record = kind.operators is None and not prefix
        recorder = Recorder(layer, hidden, kind.group) if record else None
        hooks = _watch_modules(watch, layer, recorder)
        saved: dict[int, int] = {}
        by_module: dict[str, int] = {}

        def pack(tensor: Any, saved: Any = saved, by_module: Any = by_module) -> Any:
            storage = tensor.untyped_storage()
            if storage._cdata not in own and storage._cdata not in saved:
                saved[storage._cdata] = storage.nbytes()
                path = watch.path[-1]
                by_module[path] = by_module.get(path, 0) + storage.nbytes()
            return tensor

        watch.costs, watch.peak, start = {}, watch.live, watch.live
        watch.events = recorder
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            if prefix:
                out = checkpoint.checkpoint(
                    lambda *inputs, named=named: forward(*inputs, **named),
                    *values, use_reentrant=False, preserve_rng_state=False,
                )  # fmt: skip
            else:
                out = forward(*values, **named)
        watch.events = None
        costs, peak = watch.costs, watch.peak - start
        outputs = [tensor for tensor in _tensors([out]) if tensor.requires_grad]
        live = watch.live
        watch.costs, watch.peak = {}, live
        with torch.enable_grad():
            gradients = [torch.empty_like(tensor) for tensor in outputs[:1]]
            torch.autograd.backward(outputs[:1], gradients)
        backward, backward_peak = watch.total(), watch.peak - live
        for hook in hooks:
            hook.remove()
        forward_total = Costs()
        for cost in costs.values():
            forward_total.add(cost)
        others = shared - inner
        sample[prefix + "saved_bytes"] = sum(size for storage, size in saved.items() if storage not in others)
        if prefix:
            sample["recompute_saved_bytes"] = sum(h.untyped_storage().nbytes() for h in (hidden,))
            sample["recompute_peak_bytes"] = backward_peak
        else:
            sample["shared_bytes"] = sum(size for storage, size in saved.items() if storage in others)
            sample["forward_peak_bytes"] = peak
            sample["backward_peak_bytes"] = backward_peak
            sample["forward_flops"] = forward_total.flops
            sample["forward_kernels"] = forward_total.kernels
            sample["forward_moved_bytes"] = forward_total.moved
            sample["backward_moved_bytes"] = backward.moved
        sample[prefix + "backward_flops"] = backward.flops
        sample[prefix + "backward_kernels"] = backward.kernels
        if recorder is not None:
            tokens = hidden.numel() // hidden.shape[-1]
            kind.facts["hidden"] = hidden.shape[-1]
            kind.facts["recorder"] = recorder
            kind.operators = recorder.finish(_top_k(layer), mixings(layer, recorder, costs, by_module, tokens))
            kind.facts["linears"] = recorder.linears
        if not prefix:
            result = _detached(out)
        del out, outputs, gradients, given, values, named, hidden
    for handle in handles:
        handle.remove()
    return result, sample


def _drop(watch: Watch) -> Any:
    def drop(parameter: Any) -> None:
        if parameter.grad is not None:
            watch.forget(parameter.grad)
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


def _watch_modules(watch: Watch, layer: Any, recorder: Recorder | None) -> list[Any]:
    """Follow the modules of a layer while it runs; costs go to the innermost one."""
    hooks = []
    for path, module in layer.named_modules():
        if path:
            hooks.append(module.register_forward_pre_hook(_enter(watch, path, recorder), with_kwargs=True))
            hooks.append(module.register_forward_hook(_leave(watch, path, recorder), always_call=True, with_kwargs=True))
    return hooks


def role(module: Any) -> str:
    """Return what a module is as an operator: norm, linear, experts, activation, or nothing."""
    name = type(module).__name__
    own = [value for value in module._parameters.values() if value is not None]
    if any(value.dim() == 3 for value in own) and "Conv" not in name:
        return "experts"
    if "norm" in name.lower() and not any(True for _ in module.children()):
        return "norm"
    weight = module._parameters.get("weight")
    if weight is not None and weight.dim() == 2 and "Embedding" not in name:
        return "linear"
    if type(module).__module__.startswith(("torch.nn.modules.activation", "transformers.activations")):
        return "activation"
    return ""


def _enter(watch: Watch, path: str, recorder: Recorder | None) -> Any:
    def enter(module: Any, args: Any, kwargs: Any) -> None:
        watch.path.append(path)
        if recorder is not None:
            recorder.path = path
            if role(module) == "experts":
                recorder.enter_experts(path, module, [*args, *kwargs.values()])

    return enter


def _leave(watch: Watch, path: str, recorder: Recorder | None) -> Any:
    def leave(module: Any, args: Any, kwargs: Any, out: Any) -> None:
        watch.path.pop()
        if recorder is None:
            return
        recorder.path = watch.path[-1]
        tensors = _tensors([*args, *kwargs.values()])
        outputs = _tensors([out])
        if not tensors or not outputs:
            return
        what = role(module)
        if what == "experts":
            recorder.leave_experts()
        elif what == "norm":
            recorder.norm(path, module, tensors[0], outputs[0])
        elif what == "linear":
            recorder.linear(path, module, tensors[0], outputs[0])

    return leave


def mixings(layer: Any, recorder: Recorder, costs: dict[str, Costs], saved: dict[str, int], tokens: int) -> list[dict[str, Any]]:
    """Return the operators that are no projection, norm, attention core, activation or expert.

    They are modules that multiply matrices or convolve in code of their own, or that own other parameters.
    """
    found = []
    for path, module in layer.named_modules():
        if not path or path in recorder.covered or role(module):
            continue
        inner = [child for child, part in module.named_modules(prefix=path) if child == path or "Conv" in type(part).__name__]
        own = [value for value in module._parameters.values() if value is not None]
        total = Costs()
        for child in inner:
            if child in costs:
                total.add(costs[child])
        convolves = any("Conv" in type(child).__name__ for child in module.children())
        if "Conv" in type(module).__name__ or not (total.flops or convolves or any(value.dim() for value in own)):
            continue
        parameters = sum(value.numel() for value in own)
        parameters += sum(p.numel() for c in module.modules() if "Conv" in type(c).__name__ for p in c.parameters())
        found.append(
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
    return found


def run_model(probe: Probe, call: Any) -> None:
    """Run a model, or a tower of it, with the probe in place."""
    import torch

    with torch.no_grad(), attention_cores(probe.watch, probe.implementation), dispatch_mode(probe.watch):
        call()


def fit(samples: dict[tuple[int, int], int]) -> dict[str, Any]:
    """Return the polynomial constant + batch x (sequence + token x s + token_pair x s^2) through samples.

    `exact` says whether all samples lie on it.
    """
    points = sorted(samples.items())
    terms = ("constant", "sequence", "token", "token_pair")
    rows = [[Fraction(1), Fraction(b), Fraction(b * s), Fraction(b * s * s), Fraction(v)] for (b, s), v in points]
    solution = _solve([row[:] for row in rows], len(terms))
    exact = all(sum(c * x for c, x in zip(solution, row)) == row[-1] for row in rows)
    return {**{term: _plain(value) for term, value in zip(terms, solution)}, "exact": exact}


def _plain(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _solve(rows: list[list[Fraction]], unknowns: int) -> list[Fraction]:
    """Return a solution of as many rows as are independent; unknowns that they leave open are 0."""
    pivots: list[int] = []
    used = 0
    for column in reversed(range(unknowns)) if len(rows) < unknowns else range(unknowns):
        pivot = next((i for i in range(used, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[used], rows[pivot] = rows[pivot], rows[used]
        head = rows[used][column]
        rows[used] = [value / head for value in rows[used]]
        for i, row in enumerate(rows):
            if i != used and row[column]:
                factor = row[column]
                rows[i] = [value - factor * other for value, other in zip(row, rows[used])]
        pivots.append(column)
        used += 1
    solution = [Fraction(0)] * unknowns
    for position, column in enumerate(pivots):
        solution[column] = rows[position][-1]
    return solution
