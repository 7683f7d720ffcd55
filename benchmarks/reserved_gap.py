"""The gap that the loss leaves in reserved memory, from the allocations of real optimizer steps on CPU.

    .venv-node/bin/python -m benchmarks.reserved_gap [--tokens 512] [--vocabulary 16384] [--json]

torch's profiler records every allocation of two steps of a small Qwen3. The program lays the blocks out as torch's CUDA
allocator does with expandable segments (c10/cuda/CUDACachingAllocator.cpp of torch 2.11): one range of addresses for
small and one for large blocks, the smallest free block that fits, new pages at the end, and pages are never returned.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._C._profiler import _EventType
from transformers import Qwen3Config

from benchmarks import step_peak
from benchmarks.step_peak import Case

ROUNDING, SMALL = 512, 4096
"""Blocks are multiples of the first. Up to the second they are small; on the GPU up to 1 MiB, with a larger model."""
PAGE = 64 * 1024
"""A page of the range; on the GPU 20 MiB."""


@dataclass(slots=True)
class Block:
    """A piece of the range."""

    address: int
    size: int
    free: bool


@dataclass(slots=True)
class Range:
    """A range of addresses that grows at its end."""

    blocks: list[Block] = field(default_factory=list)
    size: int = 0

    def allocate(self, size: int) -> int:
        """Return the address of a new block."""
        index = self._best(size)
        block = self.blocks[index]
        if block.size > size:
            self.blocks.insert(index + 1, Block(block.address + size, block.size - size, True))
        block.size, block.free = size, False
        return block.address

    def _best(self, size: int) -> int:
        """Return the index of the smallest free block that fits; the last one counts as large, because it can grow."""
        fitting = [index for index, each in enumerate(self.blocks[:-1]) if each.free and each.size >= size]
        if fitting:
            return min(fitting, key=lambda index: self.blocks[index].size)
        if not self.blocks or not self.blocks[-1].free:
            self.blocks.append(Block(self.size, 0, True))
        last = self.blocks[-1]
        grown = max(0, -(-(size - last.size) // PAGE) * PAGE)
        last.size += grown
        self.size += grown
        return len(self.blocks) - 1

    def release(self, address: int) -> None:
        """Free the block at an address, and join it with free blocks beside it."""
        index = next(index for index, each in enumerate(self.blocks) if each.address == address)
        self.blocks[index].free = True
        for left in (index, index - 1):
            if 0 <= left < len(self.blocks) - 1 and self.blocks[left].free and self.blocks[left + 1].free:
                self.blocks[left].size += self.blocks.pop(left + 1).size


class Memory(NamedTuple):
    """Bytes of one run."""

    allocated: int
    reserved: int
    logits: int
    """Elements."""

    @property
    def gap_per_logit(self) -> float:
        return (self.reserved - self.allocated) / self.logits


def memory_of(case: Case, logits: int) -> Memory:
    """Return the peak of the allocated bytes of two steps, and the bytes of both ranges after them."""
    model = step_peak.built(case)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    inputs = step_peak.inputs_of(case)
    step_peak.make_optimizer_states(optimizer, trained)
    states = [each for state in optimizer.state.values() for each in state.values()]
    lasting = sum(each.numel() * each.element_size() for each in (*model.parameters(), *states))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        for _ in range(2):
            step_peak.step(model, optimizer, inputs, case.accumulation)
    events = sorted(_allocations(profile.profiler.kineto_results.experimental_event_tree()))
    large, small = Range(), Range()
    large.allocate(lasting)
    where: dict[int, tuple[Range, int, int]] = {}
    alive = peak = lasting
    for _, pointer, change in events:
        if change > 0:
            size = -(-change // ROUNDING) * ROUNDING
            blocks = small if size <= SMALL else large
            where[pointer] = (blocks, blocks.allocate(size), size)
            alive += size
            peak = max(peak, alive)
        elif pointer in where:
            blocks, address, size = where.pop(pointer)
            blocks.release(address)
            alive -= size
    return Memory(allocated=peak, reserved=large.size + small.size, logits=logits)


def _allocations(events: list[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield (time, pointer, bytes) of every allocation, and of every release with negative bytes."""
    for event in events:
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size
        yield from _allocations(event.children)


def main() -> None:
    """Print one line for each case, or JSON {case: bytes of the gap for each logit}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    step_peak.SEQUENCE, step_peak.BATCH = chosen.tokens, 1
    gaps = {}
    for lora in (False, True):
        for checkpointing in (True, False):
            case = Case(config=Qwen3Config, vocabulary=chosen.vocabulary, lora=lora, checkpointing=checkpointing)
            name = f"{'LoRA' if lora else 'full'}, {'checkpoints' if checkpointing else 'no checkpoints'}"
            memory = memory_of(case, chosen.tokens * chosen.vocabulary)
            gaps[name] = memory.gap_per_logit
            if not chosen.json:
                ratio = memory.reserved / memory.allocated
                print(f"{name:22} reserved / allocated {ratio:.3f}, gap {memory.gap_per_logit:.2f} bytes a logit")
    if chosen.json:
        print(json.dumps(gaps))


if __name__ == "__main__":
    main()
