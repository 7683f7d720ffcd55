"""Runs on the nodes, once per rank, started by torchrun: `benchmark.py FOLDER` measures what the machine reaches.

The rate of a matrix product on every rank at once; the bus bandwidth of an all-reduce inside each node, and across
nodes with every rank among its counterparts; what pairs of neighbouring nodes exchange, which tells a slow node from a
slow network. FOLDER/measured.rank<k>.json gets what this rank saw, FOLDER/rank<k>.log what it prints. NCCL on GPUs,
gloo on CPUs. torch is all that is needed. A rank that takes longer than LIMIT_S is ended by its own alarm.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from datetime import timedelta
from functools import partial
from typing import Any, Callable

PROTOCOL = 1
LIMIT_S = 180
"""From the start of the process, imports included."""
COLLECTIVE_S = 120
"""Also until the slowest rank has imported torch."""
SECONDS = {"cuda": 1.0, "cpu": 0.4}
"""Aimed at for one measurement."""
SIZES_MIB = {"cuda": (1, 4, 16, 64, 256), "cpu": (1, 4, 16)}
PAIR_MIB = {"cuda": 64, "cpu": 4}
PRODUCT = {"cuda": 8192, "cpu": 1024}
"""Rows and columns of the matrices: as large as the largest in training, small enough for a CPU."""
MOST_TIMES = 20


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    signal.alarm(LIMIT_S)
    log = os.open(f"{folder}/rank{os.environ['RANK']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)

    import torch

    found = Rank(torch).measure()
    path = f"{folder}/measured.rank{found['rank']}.json"
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump({"protocol": PROTOCOL, **found}, file)
    os.replace(f"{path}.part", path)


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Every node with the next one, the last with the first, in rounds in which each node is in one pair at most.

    None for fewer than three nodes: of one pair nobody can say which of the two is slow.
    """
    if nodes < 3:
        return []
    pairs = [(node, (node + 1) % nodes) for node in range(nodes)]
    even = nodes - nodes % 2
    return [pairs[0:even:2], pairs[1:even:2], *([pairs[even:]] if even < nodes else [])]


class Rank:
    """This process, its device, and where it stands among the others."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.dist = torch, torch.distributed
        self.kind = "cuda" if torch.cuda.is_available() else "cpu"
        self.rank, self.local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        self.per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        self.node = self.rank // self.per_node
        self.nodes = int(os.environ["WORLD_SIZE"]) // self.per_node
        self.device = torch.device(self.kind, self.local if self.kind == "cuda" else None)
        if self.kind == "cuda":
            torch.cuda.set_device(self.device)
        backend = "nccl" if self.kind == "cuda" else "gloo"
        self.dist.init_process_group(backend, timeout=timedelta(seconds=COLLECTIVE_S))

    def measure(self) -> dict[str, Any]:
        """Everything, in the order that all ranks go through."""
        precision, tflops = self.product()
        print("product", precision, tflops, flush=True)
        found = {
            "rank": self.rank,
            "node": self.node,
            "local_rank": self.local,
            "device": self.torch.cuda.get_device_name() if self.kind == "cuda" else "CPU",
            "precision": precision,
            "matmul_tflops": tflops,
            "intra": self.reductions(
                [[n * self.per_node + i for i in range(self.per_node)] for n in range(self.nodes)]
            ),
            "inter": self.reductions(
                [[n * self.per_node + i for n in range(self.nodes)] for i in range(self.per_node)]
            ),
            "pairs": self.exchanges(),
        }
        print(json.dumps(found), flush=True)
        self.dist.barrier()
        self.dist.destroy_process_group()
        return found

    def product(self) -> tuple[str, float]:
        """TFLOP/s of square matrices: the median of several rounds, all ranks at work."""
        torch, size = self.torch, PRODUCT[self.kind]
        precision = "fp32"
        if self.kind == "cuda":
            # From Ampere (8.0) on; torch's own question also answers yes where bf16 is emulated.
            precision = "bf16" if torch.cuda.get_device_capability()[0] >= 8 else "fp16"
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
        left, right = (torch.randn(size, size, device=self.device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)

        def multiply() -> None:
            torch.mm(left, right, out=out)

        self.seconds(multiply, 3)
        times = self.times_for(self.seconds(multiply, 1), SECONDS[self.kind] / 5)
        each = statistics.median(self.seconds(multiply, times) / times for _ in range(7))
        return precision, 2.0 * size**3 / each / 1e12

    def reductions(self, groups: list[list[int]]) -> dict[str, float]:
        """Size in MiB -> bus bandwidth in GB/s of an all-reduce in each of the groups at once; empty for groups of one.

        2 (n - 1) / n x size / seconds (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
        """
        count = len(groups[0])
        if count == 1:
            return {}
        made = [self.dist.new_group(ranks) for ranks in groups]
        mine = next(group for group, ranks in zip(made, groups) if self.rank in ranks)
        found: dict[str, float] = {}
        for mib in SIZES_MIB[self.kind]:
            buffer = self.torch.zeros(mib << 18, dtype=self.torch.float32, device=self.device)
            each = self.together(partial(self.dist.all_reduce, buffer, group=mine))
            found[str(mib)] = 2 * (count - 1) / count * (mib << 20) / each / 1e9
            if self.slowest(each) > SECONDS[self.kind]:
                break
        return found

    def exchanges(self) -> dict[str, float]:
        """Neighbouring node -> GB/s, one direction, while both send to each other and the other ranks do alike."""
        found: dict[str, float] = {}
        mib = PAIR_MIB[self.kind]
        sent = self.torch.zeros(mib << 18, dtype=self.torch.float32, device=self.device)
        received = self.torch.empty_like(sent)
        for pairs in rounds(self.nodes):
            other = next((a + b - self.node for a, b in pairs if self.node in (a, b)), None)

            def exchange(other: int | None = other) -> None:
                if other is None:
                    return
                peer = other * self.per_node + self.local
                way = self.dist.P2POp
                both = [way(self.dist.isend, sent, peer), way(self.dist.irecv, received, peer)]
                for work in self.dist.batch_isend_irecv(both):
                    work.wait()

            each = self.together(exchange)
            if other is not None:
                found[str(other)] = (mib << 20) / each / 1e9
        return found

    def together(self, act: Callable[[], Any]) -> float:
        """Seconds of one `act`, done as often on every rank, after a first time that connects."""
        self.seconds(act, 1)
        self.dist.barrier()
        times = self.times_for(self.seconds(act, 1), SECONDS[self.kind])
        self.dist.barrier()
        return self.seconds(act, times) / times

    def times_for(self, once_s: float, seconds: float) -> int:
        """How often fits into `seconds` on the slowest rank: the same answer on all."""
        return max(1, min(MOST_TIMES, int(seconds / max(self.slowest(once_s), 1e-6))))

    def slowest(self, seconds: float) -> float:
        """The largest of all ranks' figures."""
        value = self.torch.tensor(seconds, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(value, op=self.dist.ReduceOp.MAX)
        return float(value.item())

    def seconds(self, act: Callable[[], Any], times: int) -> float:
        """Of so many times one after the other, until the device is done with them."""
        self.wait()
        begun = time.perf_counter()
        for _ in range(times):
            act()
        self.wait()
        return time.perf_counter() - begun

    def wait(self) -> None:
        if self.kind == "cuda":
            self.torch.cuda.synchronize()


if __name__ == "__main__":
    main()
