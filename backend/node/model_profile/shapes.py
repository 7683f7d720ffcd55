"""Execution of a model's code without data, which counts its costs and follows its control flow.

Floating-point tensors are on the meta device. Small integer tensors (token ids, positions, image grids, the experts of
a token) stay real, because code branches on their values. The router is assumed to be balanced, so top-k assigns the
experts in turn. Each value that the code reads from a floating-point tensor is 0.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import Any, Iterator

LARGEST_REAL = 1 << 24
"""Maximum number of elements of an integer tensor that stays real."""


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


def dispatch_mode(meter: CostMeter) -> Any:
    """Return the context manager in which torch runs without data and counts the costs."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    meta = torch.device("meta")
    factories = {
        getattr(aten, name)
        for name in (
            *("arange", "linspace", "zeros", "ones", "full", "empty", "scalar_tensor", "eye", "tril_indices"),
            *("new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like"),
            *("triu_indices", "randint", "randperm", "empty_strided", "new_empty_strided", "rand", "randn"),
        )
    }
    likes = {aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like, aten.new_zeros, aten.new_ones}
    likes |= {aten.new_full, aten.new_empty, aten.new_empty_strided}
    gathers = {aten.index, aten.embedding, aten.gather, aten.index_select}
    activations = {aten.silu: "silu", aten.gelu: "gelu", aten.relu: "relu", aten.hardswish: "hardswish"}

    def is_exact(dtype: Any) -> bool:
        return not (dtype.is_floating_point or dtype.is_complex)

    def to_meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if value.is_meta else value.to(meta)
        if isinstance(value, (list, tuple)):
            return [to_meta(item) for item in value]
        return value

    def tensors_in(values: Any) -> list[Any]:
        tensors = []
        for value in values:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            elif isinstance(value, (list, tuple)):
                tensors += tensors_in(value)
        return tensors

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        packet = func.overloadpacket
        on_meta = any(tensor.is_meta for tensor in tensors_in((*args, *kwargs.values())))
        if packet is aten._to_copy:
            return copy(func, args, kwargs)
        if packet in factories:
            return create(func, packet, args, kwargs)
        if not on_meta:
            if kwargs.get("device") == meta:
                kwargs = {**kwargs, "device": torch.device("cpu")}
            if packet is aten.histc and is_exact(args[0].dtype):
                # On a GPU histc also counts integers.
                return func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
            return func(*args, **kwargs)
        special = handlers.get(packet)
        if special is not None:
            outcome = special(func, args, kwargs)
            if outcome is not NotImplemented:
                return outcome
        if packet in (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_):
            args = (args[0], [part for index in args[1] for part in positions(index)], *args[2:])
            args = tuple(args)
        for value, argument in zip(args, func._schema.arguments):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, torch.Tensor) and value.device != meta:
                return value
        return func(*map(to_meta, args), **{name: to_meta(value) for name, value in kwargs.items()})

    def positions(index: Any) -> list[Any]:
        """Return the positions where a mask is true. A mask on the meta device has no data and is true everywhere."""
        if not isinstance(index, torch.Tensor) or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        mask = torch.ones(index.shape, dtype=torch.bool) if index.is_meta else index
        return list(mask.nonzero().unbind(1))

    def copy(func: Any, args: Any, kwargs: Any) -> Any:
        """Keep small integers real and all else on the meta device, whatever device the code names."""
        tensor = args[0]
        if "device" in kwargs:
            exact = is_exact(kwargs.get("dtype") or tensor.dtype) and tensor.numel() <= LARGEST_REAL
            stays = not tensor.is_meta and (exact or kwargs["device"] != meta)
            kwargs = {**kwargs, "device": torch.device("cpu") if stays else meta}
        return func(*args, **kwargs)

    def create(func: Any, packet: Any, args: Any, kwargs: Any) -> Any:
        device = kwargs.get("device") or (args[0].device if packet in likes else torch.device("cpu"))
        if torch.device(device) != meta:
            return func(*args, **kwargs)
        dtype = kwargs.get("dtype") or (args[0].dtype if packet in likes else None)
        if dtype is None:
            numbers = [value for value in args if isinstance(value, (int, float))]
            whole = packet is aten.arange and all(isinstance(value, int) for value in numbers)
            dtype = torch.int64 if whole else torch.get_default_dtype()
        real = is_exact(dtype) or packet in (aten.arange, aten.linspace, aten.scalar_tensor)
        if not real:
            return func(*args, **{**kwargs, "device": meta})
        if (
            packet in likes
            and args[0].device == meta
            and packet in (aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like)
        ):
            shape = tuple(args[0].shape)
            value = {aten.ones_like: 1, aten.full_like: args[1] if len(args) > 1 else 0}.get(packet, 0)
            return torch.full(shape, value, dtype=dtype)
        return func(*args, **{**kwargs, "device": torch.device("cpu")})

    def balanced(shape: Any, count: int) -> Any:
        """Return indices in turn. Every expert receives as many tokens as the others."""
        total = 1
        for size in shape:
            total *= size
        return (torch.arange(total) % max(count, 1)).reshape(shape)

    def topk(func: Any, args: Any, kwargs: Any) -> Any:
        values, indices = func(*args, **kwargs)
        dim = args[2] if len(args) > 2 else -1
        return values, balanced(indices.shape, args[0].shape[dim])

    def sort(func: Any, args: Any, kwargs: Any) -> Any:
        values, indices = func(*(to_meta(value) for value in args), **kwargs)
        return values, balanced(indices.shape, args[0].shape[-1] if args[0].dim() else 1)

    def argmax(func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        return balanced(out.shape, args[0].shape[args[1]] if len(args) > 1 and args[1] is not None else 1)

    def scalar(func: Any, args: Any, kwargs: Any) -> Any:
        dtype = args[0].dtype
        return False if dtype is torch.bool else 0 if is_exact(dtype) else 0.0

    def nonzero(func: Any, args: Any, kwargs: Any) -> Any:
        return torch.zeros((args[0].numel(), args[0].dim()), dtype=torch.long)

    def equal(func: Any, args: Any, kwargs: Any) -> Any:
        return True

    def scatter(func: Any, args: Any, kwargs: Any) -> Any:
        """Keep a table of selected experts real, because code counts the tokens of each expert in it."""
        target, dim, index, value = args[:4]
        if index.is_meta or not isinstance(value, (int, float)) or target.numel() > LARGEST_REAL:
            return NotImplemented
        return torch.zeros(target.shape, dtype=target.dtype).scatter(dim, index, value)

    handlers = {
        aten.topk: topk,
        aten.sort: sort,
        aten.argsort: lambda func, args, kwargs: balanced(args[0].shape, args[0].shape[-1]),
        aten.argmax: argmax,
        aten._local_scalar_dense: scalar,
        aten.nonzero: nonzero,
        aten.equal: equal,
        aten.is_nonzero: scalar,
        aten.scatter: scatter,
    }

    def count(func: Any, args: Any, kwargs: Any, out: Any) -> None:
        packet = func.overloadpacket
        inputs = tensors_in((*args, *kwargs.values()))
        outputs = tensors_in((out,))
        written = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        known = {tensor.untyped_storage()._cdata for tensor in inputs}
        fresh = [tensor for tensor in outputs if tensor.untyped_storage()._cdata not in known]
        for tensor in fresh:
            meter.allocated(tensor)
        if not fresh and not written:
            return
        if packet in (aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided):
            return
        cost = meter.cost()
        cost.kernels += 1
        moved = sum(size_of(tensor) for tensor in outputs)
        read = inputs[1:] if packet in gathers else inputs
        cost.moved += moved + sum(size_of(tensor) for tensor in read) + (moved if packet in gathers else 0)
        if "grouped_mm" in packet.__name__:
            left, right = inputs[:2]
            rows = left.numel() // (left.shape[0] if left.dim() == 3 else 1)
            cost.flops += 2 * rows * right.shape[-1]
        elif packet in flop_registry:
            cost.flops += int(flop_registry[packet](*args, **kwargs, out_val=out))
        if meter.events is not None:
            if packet in activations:
                meter.events.activated(activations[packet], outputs[0])
            elif packet in (aten.mul, aten.mul_) and len(inputs) == 2:
                meter.events.multiplied(inputs)

    def size_of(tensor: Any) -> int:
        return min(int(tensor.numel() * tensor.element_size()), int(tensor.untyped_storage().nbytes()))

    class Shapes(TorchDispatchMode):  # type: ignore[misc]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Return False, which avoids the import of torch's compiler. This import takes seconds."""
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = run(func, args, kwargs or {})
            count(func, args, kwargs or {}, out)
            return out

    class Values(TorchFunctionMode):  # type: ignore[misc]
        """Functions that create or read values before the dispatcher gets them."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == meta:
                tensor = func(*args, **{**kwargs, "device": torch.device("cpu")})
                return tensor if is_exact(tensor.dtype) else tensor.to(meta)
            if func is torch.Tensor.tolist and args[0].is_meta:
                return torch.zeros(args[0].shape, dtype=args[0].dtype).tolist()
            return func(*args, **kwargs)

    @contextmanager
    def both() -> Iterator[None]:
        with Values(), Shapes():
            yield

    return both()
