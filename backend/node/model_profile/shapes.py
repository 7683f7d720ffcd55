"""Costs of a model's code that runs without data: FLOPs, moved bytes, kernels and live bytes."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import Any, Iterator

from .meta_tensors import MetaTensors, tensors_in


class Costs:
    """Costs of a piece of code: matrix FLOPs, bytes that kernels read and write, and number of kernels."""

    def __init__(self) -> None:
        self.flops = 0
        self.moved = 0
        self.kernels = 0

    def add(self, other: Costs) -> None:
        """Add the costs of another piece of code."""
        self.flops += other.flops
        self.moved += other.moved
        self.kernels += other.kernels


class CostMeter:
    """Costs by module, and the bytes that are alive."""

    def __init__(self) -> None:
        self.costs: dict[str, Costs] = {}
        self.path: list[str] = [""]
        self.live = 0
        self.peak = 0
        self.events: Any = None
        self._storages: dict[int, tuple[Any, int, int]] = {}
        self._serial = 0

    def cost(self) -> Costs:
        """Return the costs of the module that runs."""
        return self.costs.setdefault(self.path[-1], Costs())

    def total(self) -> Costs:
        """Return the costs of all modules."""
        total = Costs()
        for cost in self.costs.values():
            total.add(cost)
        return total

    def allocated(self, tensor: Any) -> bool:
        """Record the storage of an output, and return whether it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return False
        size = storage.nbytes()
        self._serial += 1
        self._storages[key] = (weakref.ref(storage, lambda _: self._freed(key)), size, self._serial)
        self.live += size
        self.peak = max(self.peak, self.live)
        return True

    def forget(self, tensor: Any) -> None:
        """Stop counting the storage of a tensor, such as a weight's gradient after its accumulation."""
        self._freed(tensor.untyped_storage()._cdata)

    def _freed(self, key: int) -> None:
        self.live -= self._storages.pop(key, (None, 0, 0))[1]

    def serial(self, tensor: Any) -> int:
        """Return a number that no other storage has or will have. It is 0 for a storage that is not counted."""
        entry: tuple[Any, int, int] = self._storages.get(tensor.untyped_storage()._cdata, (None, 0, 0))
        return entry[2]

    def alive(self) -> set[int]:
        """Return the numbers of the storages that are alive."""
        return {serial for _, _, serial in self._storages.values()}


class KernelCounter:
    """Adds the costs of each operation of torch to a meter."""

    def __init__(self, meter: CostMeter) -> None:
        import torch
        from torch.utils.flop_counter import flop_registry

        aten = torch.ops.aten
        self._meter = meter
        self._flops = flop_registry
        self._gathers = {aten.index, aten.embedding, aten.gather, aten.index_select}
        self._without_kernel = {
            *(aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided)
        }
        self._products = (aten.mul, aten.mul_)
        self._activations = {
            aten.silu: "silu",
            aten.gelu: "gelu",
            aten.relu: "relu",
            aten.hardswish: "hardswish",
        }

    def count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count one operation and its new storages. A view costs nothing."""
        packet = func.overloadpacket
        inputs = tensors_in((*args, *kwargs.values()))
        outputs = tensors_in((out,))
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        known = {tensor.untyped_storage()._cdata for tensor in inputs}
        fresh = [tensor for tensor in outputs if tensor.untyped_storage()._cdata not in known]
        for tensor in fresh:
            self._meter.allocated(tensor)
        if (not fresh and not writes) or packet in self._without_kernel:
            return
        cost = self._meter.cost()
        cost.kernels += 1
        cost.moved += self._moved_bytes(packet, inputs, outputs)
        cost.flops += self._matrix_flops(packet, inputs, args, kwargs, out)
        self._report(packet, inputs, outputs)

    def _moved_bytes(self, packet: Any, inputs: list[Any], outputs: list[Any]) -> int:
        written = sum(size_of(tensor) for tensor in outputs)
        if packet in self._gathers:  # it reads only the rows that it writes
            return 2 * written + sum(size_of(tensor) for tensor in inputs[1:])
        return written + sum(size_of(tensor) for tensor in inputs)

    def _matrix_flops(self, packet: Any, inputs: list[Any], args: Any, kwargs: Any, out: Any) -> int:
        if "grouped_mm" in packet.__name__:
            left, right = inputs[:2]
            rows = left.numel() // (left.shape[0] if left.dim() == 3 else 1)
            return int(2 * rows * right.shape[-1])
        return int(self._flops[packet](*args, **kwargs, out_val=out)) if packet in self._flops else 0

    def _report(self, packet: Any, inputs: list[Any], outputs: list[Any]) -> None:
        """Tell the recorder of operators about activations and products."""
        events = self._meter.events
        if events is None:
            return
        if packet in self._activations:
            events.activated(self._activations[packet], outputs[0])
        elif packet in self._products and len(inputs) == 2:
            events.multiplied(inputs)


def size_of(tensor: Any) -> int:
    return min(int(tensor.numel() * tensor.element_size()), int(tensor.untyped_storage().nbytes()))


def dispatch_mode(meter: CostMeter) -> Any:
    """Return the context manager in which torch runs without data and counts the costs."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    meta_tensors, counter = MetaTensors(), KernelCounter(meter)

    class Shapes(TorchDispatchMode):  # type: ignore[misc]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Return False, which avoids the import of torch's compiler. This import takes seconds."""
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = meta_tensors.run(func, args, kwargs or {})
            counter.count(func, args, kwargs or {}, out)
            return out

    class Values(TorchFunctionMode):  # type: ignore[misc]
        """Functions that create or read values before the dispatcher gets them."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu").type == "meta":
                return meta_tensors.made(func(*args, **{**kwargs, "device": torch.device("cpu")}))
            if func is torch.Tensor.tolist and args[0].is_meta:
                return torch.zeros(args[0].shape, dtype=args[0].dtype).tolist()
            return func(*args, **kwargs)

    @contextmanager
    def both() -> Iterator[None]:
        with Values(), Shapes():
            yield

    return both()
