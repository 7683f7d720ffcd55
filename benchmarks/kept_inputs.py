"""Count of layer inputs and gradients alive when backward reaches the first layer, under FSDP with adapters.

    .venv-node/bin/python -m benchmarks.kept_inputs

Prints {"FSDP 1, reentrant": tensors, ...} for eight checkpointed layers of frozen weights and an adapter, on one CPU
process. The count without FSDP is what the first layer itself needs.
"""

import gc
import json
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.checkpoint import checkpoint

LAYERS, TOKENS, HIDDEN, RANK = 8, 1000, 64, 4
CPU = torch.device("cpu")


class Adapted(nn.Module):
    """A frozen projection with its adapter. PEFT's policy makes each of them an FSDP unit."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self.base = nn.Linear(HIDDEN, HIDDEN, bias=False).requires_grad_(False)
        self.down, self.up = (
            _unit(nn.Linear(*sizes, bias=False), version) for sizes in ((HIDDEN, RANK), (RANK, HIDDEN))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """A projection and its adapter on the residual stream."""
        return inputs + self.base(inputs) + self.up(self.down(inputs))


class Stack(nn.Module):
    """Checkpointed layers, called as transformers calls them."""

    def __init__(self, version: int, *, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_unit(Adapted(version), version) for _ in range(LAYERS))
        self.reentrant = reentrant

    def forward(self, hidden: Tensor) -> Tensor:
        """A sequence of layers."""
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=self.reentrant)
        return hidden


def _unit(module: nn.Module, version: int) -> nn.Module:
    if version == 1:
        return FullyShardedDataParallel(module, device_id=CPU, use_orig_params=True)
    return fully_shard(module, mesh=init_device_mesh("cpu", (1,))) if version == 2 else module


def alive(version: int, *, reentrant: bool) -> int:
    """Return the number of distinct storages as large as a layer's input. Version 0 is without FSDP."""
    inputs = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    storages: set[int] = set()

    def count_storages(_: Tensor) -> None:
        gc.collect()
        for existing in [item for item in gc.get_objects() if type(item) is Tensor]:
            for tensor in (existing, existing.grad if existing.is_leaf else None):
                if tensor is not None and tensor.untyped_storage().nbytes() == inputs.untyped_storage().nbytes():
                    storages.add(tensor.untyped_storage().data_ptr())

    inputs.register_hook(count_storages)
    _unit(Stack(version, reentrant=reentrant), version)(inputs).sum().backward()
    return len(storages)


def main() -> None:
    """Print the count of each combination."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    names = ("no FSDP", "FSDP 1", "FSDP 2")
    counts = {
        f"{names[version]}, {'' if reentrant else 'not '}reentrant": alive(version, reentrant=reentrant)
        for version, reentrant in product((0, 1, 2), (True, False))
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
