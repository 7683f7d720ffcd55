"""Operations of torch on tensors without data, so that a model's code runs and takes its usual branches.

Floating-point tensors are on the meta device. Small integer tensors (token ids, positions, image grids, the experts of
a token) stay real, because code branches on their values. The router is assumed to be balanced, so top-k assigns the
experts in turn. Each value that the code reads from a floating-point tensor is 0.
"""

from __future__ import annotations

from typing import Any

LARGEST_REAL = 1 << 24
"""Maximum number of elements of an integer tensor that stays real."""
FACTORIES = (
    *("arange", "linspace", "zeros", "ones", "full", "empty", "scalar_tensor", "eye", "tril_indices"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like"),
    *("triu_indices", "randint", "randperm", "empty_strided", "new_empty_strided", "rand", "randn"),
)
LIKES = (
    *("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"),
    "new_empty_strided",
)
"""Factories whose first argument gives the device and the data type."""
WITH_INDICES = ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_")


def tensors_in(values: Any) -> list[Any]:
    """Return the tensors in arguments, which may be lists."""
    import torch

    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += tensors_in(value)
    return tensors


def is_exact(dtype: Any) -> bool:
    """Return whether the values of a data type are whole numbers or truth values."""
    return not (dtype.is_floating_point or dtype.is_complex)


class MetaTensors:
    """Runs the operations of torch. An operation that code branches on gets plausible values."""

    def __init__(self) -> None:
        import torch

        aten = torch.ops.aten
        self._torch, self._aten = torch, aten
        self._cpu, self._meta = torch.device("cpu"), torch.device("meta")
        self._factories = {getattr(aten, name) for name in FACTORIES}
        self._likes = {getattr(aten, name) for name in LIKES}
        self._with_indices = {getattr(aten, name) for name in WITH_INDICES}
        self._handlers = {
            aten.topk: self._topk,
            aten.sort: self._sort,
            aten.argsort: lambda func, args, kwargs: self._balanced(args[0].shape, args[0].shape[-1]),
            aten.argmax: self._argmax,
            aten._local_scalar_dense: self._scalar,
            aten.nonzero: lambda func, args, kwargs: torch.zeros((args[0].numel(), args[0].dim()), dtype=torch.long),
            aten.equal: lambda func, args, kwargs: True,
            aten.is_nonzero: self._scalar,
            aten.scatter: self._scatter,
        }

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of an operation, with real values where code may branch on them."""
        aten, packet = self._aten, func.overloadpacket
        on_meta = any(tensor.is_meta for tensor in tensors_in((*args, *kwargs.values())))
        if packet is aten._to_copy:
            return self._copy(func, args, kwargs)
        if packet in self._factories:
            return self._create(func, packet, args, kwargs)
        if not on_meta:
            return self._run_real(func, packet, args, kwargs)
        special = self._handlers.get(packet)
        if special is not None:
            outcome = special(func, args, kwargs)
            if outcome is not NotImplemented:
                return outcome
        if packet in self._with_indices:
            args = (args[0], [part for index in args[1] for part in self._positions(index)], *args[2:])
        for value, argument in zip(args, func._schema.arguments):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and isinstance(value, self._torch.Tensor) and value.device != self._meta:
                return value
        return func(*map(self._to_meta, args), **{name: self._to_meta(value) for name, value in kwargs.items()})

    def made(self, tensor: Any) -> Any:
        """Return a tensor that code made from values: on the meta device unless its values are exact."""
        return tensor if is_exact(tensor.dtype) else tensor.to(self._meta)

    def _run_real(self, func: Any, packet: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("device") == self._meta:
            kwargs = {**kwargs, "device": self._cpu}
        if packet is self._aten.histc and is_exact(args[0].dtype):
            # On a GPU histc also counts integers.
            return func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
        return func(*args, **kwargs)

    def _to_meta(self, value: Any) -> Any:
        if isinstance(value, self._torch.Tensor):
            return value if value.is_meta else value.to(self._meta)
        if isinstance(value, (list, tuple)):
            return [self._to_meta(item) for item in value]
        return value

    def _positions(self, index: Any) -> list[Any]:
        """Return the positions where a mask is true. A mask on the meta device has no data and is true everywhere."""
        torch = self._torch
        if not isinstance(index, torch.Tensor) or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        mask = torch.ones(index.shape, dtype=torch.bool) if index.is_meta else index
        return list(mask.nonzero().unbind(1))

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Keep small integers real and all else on the meta device, whatever device the code names."""
        tensor = args[0]
        if "device" in kwargs:
            exact = is_exact(kwargs.get("dtype") or tensor.dtype) and tensor.numel() <= LARGEST_REAL
            stays = not tensor.is_meta and (exact or kwargs["device"] != self._meta)
            kwargs = {**kwargs, "device": self._cpu if stays else self._meta}
        return func(*args, **kwargs)

    def _create(self, func: Any, packet: Any, args: Any, kwargs: Any) -> Any:
        torch, aten = self._torch, self._aten
        device = kwargs.get("device") or (args[0].device if packet in self._likes else self._cpu)
        if torch.device(device) != self._meta:
            return func(*args, **kwargs)
        dtype = kwargs.get("dtype") or (args[0].dtype if packet in self._likes else None)
        if dtype is None:
            numbers = [value for value in args if isinstance(value, (int, float))]
            is_whole = packet is aten.arange and all(isinstance(value, int) for value in numbers)
            dtype = torch.int64 if is_whole else torch.get_default_dtype()
        if not is_exact(dtype) and packet not in (aten.arange, aten.linspace, aten.scalar_tensor):
            return func(*args, **{**kwargs, "device": self._meta})
        if packet in (aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like) and args[0].is_meta:
            value = {aten.ones_like: 1, aten.full_like: args[1] if len(args) > 1 else 0}.get(packet, 0)
            return torch.full(tuple(args[0].shape), value, dtype=dtype)
        return func(*args, **{**kwargs, "device": self._cpu})

    def _balanced(self, shape: Any, count: int) -> Any:
        """Return indices in turn. Every expert receives as many tokens as the others."""
        total = 1
        for size in shape:
            total *= size
        return (self._torch.arange(total) % max(count, 1)).reshape(shape)

    def _topk(self, func: Any, args: Any, kwargs: Any) -> Any:
        values, indices = func(*args, **kwargs)
        dim = args[2] if len(args) > 2 else -1
        return values, self._balanced(indices.shape, args[0].shape[dim])

    def _sort(self, func: Any, args: Any, kwargs: Any) -> Any:
        values, indices = func(*(self._to_meta(value) for value in args), **kwargs)
        return values, self._balanced(indices.shape, args[0].shape[-1] if args[0].dim() else 1)

    def _argmax(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        return self._balanced(out.shape, args[0].shape[args[1]] if len(args) > 1 and args[1] is not None else 1)

    def _scalar(self, func: Any, args: Any, kwargs: Any) -> Any:
        dtype = args[0].dtype
        return False if dtype is self._torch.bool else 0 if is_exact(dtype) else 0.0

    def _scatter(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Keep a table of selected experts real, because code counts the tokens of each expert in it."""
        target, dim, index, value = args[:4]
        if index.is_meta or not isinstance(value, (int, float)) or target.numel() > LARGEST_REAL:
            return NotImplemented
        return self._torch.zeros(target.shape, dtype=target.dtype).scatter(dim, index, value)
