"""Bytes alive in a step of torch's FSDP 2, in weights of one layer in 16 bits, beside the terms of our formula.

    .venv-node/bin/python -m benchmarks.fsdp_step

Needs torch (the node environment). torch's FSDPMemTracker counts on CPU, in one process, with a process group that
sends nothing. LAYERS layers of equal size are sharded over RANKS ranks, so that the shards weigh next to nothing.

Prints {case: {"held": after the first of two micro-batches, "peak": in the step}} with and without the no_sync of
accelerate (1.11.0 accelerator.py no_sync calls set_requires_gradient_sync).
"""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

HIDDEN, LAYERS, RANKS = 1024, 6, 1024
UNIT = 2 * HIDDEN**2
"""Bytes of the weights of a layer in 16 bits."""


class Layer(nn.Module):
    """A projection on the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """The stream and its projection."""
        result: Tensor = hidden + self.projection(hidden)
        return result


def units(*, syncs: bool) -> dict[str, float]:
    """Return the units that are alive after the first micro-batch, and at the peak of a step with two."""
    mesh = init_device_mesh("cpu", (RANKS,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model: Any = nn.Sequential(*(fully_shard(Layer(), mesh=mesh, mp_policy=policy) for _ in range(LAYERS)))
    fully_shard(model, mesh=mesh, mp_policy=policy)
    tracker: Any = FSDPMemTracker(model, torch.optim.SGD(model.parameters(), lr=0.1))
    inputs = torch.randn(2, HIDDEN)
    tracker.track_inputs((inputs,))
    held = 0.0
    with tracker:
        for last in (False, True):
            model.set_requires_gradient_sync(last or syncs)
            model(inputs).sum().backward()
            held = held or _total(tracker, "current")
    return {"held": held, "peak": _total(tracker, "peak")}


def _total(tracker: Any, kind: str) -> float:
    [by_kind] = tracker.get_tracker_snapshot(kind).values()
    return round(by_kind["Total"] / UNIT, 2)


def main() -> None:
    """Print the units of both ways to accumulate."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    print(json.dumps({"no_sync": units(syncs=False), "sync_each_batch": units(syncs=True)}))


if __name__ == "__main__":
    main()
