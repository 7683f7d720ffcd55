"""Benchmark of a cluster's GEMMs and network. torchrun starts `benchmark.py FOLDER` once per rank.

It measures:

- the rate of a matrix product on all ranks at once,
- the bus bandwidth of an all-reduce inside each node, and of an all-reduce across nodes for each local rank,
- the exchange between pairs of neighbouring nodes, which shows whether a node or the network is slow.

FOLDER/measured.rank<k>.json gets the results of this rank, and FOLDER/rank<k>.log its output. The benchmark uses NCCL
on GPUs and gloo on CPUs, and needs only torch. An alarm ends a rank that takes longer than LIMIT_S.
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
"""Time from the start of the process, with its imports."""
COLLECTIVE_S = 120
"""Time limit of a collective. The first one waits until the slowest rank has imported torch."""
SECONDS = {"cuda": 1.0, "cpu": 0.4}
"""Duration of one measurement."""
SIZES_MIB = {"cuda": (1, 4, 16, 64, 256), "cpu": (1, 4, 16)}
PAIR_MIB = {"cuda": 64, "cpu": 4}
PRODUCT = {"cuda": 8192, "cpu": 1024}
"""Rows and columns of the matrices: as large as the largest in training, or small enough for a CPU."""
MOST_TIMES = 20


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    signal.alarm(LIMIT_S)
    log = os.open(f"{folder}/rank{os.environ['RANK']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)

    import torch

    results = Rank(torch).measure()
    path = f"{folder}/measured.rank{results['rank']}.json"
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump({"protocol": PROTOCOL, **results}, file)
    os.replace(f"{path}.part", path)


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs: each node with the next, and the last with the first. A round has a node only once.

    The list is empty for fewer than three nodes, because one pair does not show which of its nodes is slow.
    """
    if nodes < 3:
        return []
    pairs = [(node, (node + 1) % nodes) for node in range(nodes)]
    even = nodes - nodes % 2
    return [pairs[0:even:2], pairs[1:even:2], *([pairs[even:]] if even < nodes else [])]


class Rank:
    """This process: its device, its rank and its node."""

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
        """Return all results. All ranks measure in the same order."""
        precision, tflops = self.product()
        print("product", precision, tflops, flush=True)
        results = {
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
        print(json.dumps(results), flush=True)
        self.dist.barrier()
        self.dist.destroy_process_group()
        return results

    def product(self) -> tuple[str, float]:
        """Return precision and TFLOP/s of square matrices: the median of several rounds, on all ranks at once."""
        torch, size = self.torch, PRODUCT[self.kind]
        precision = "fp32"
        if self.kind == "cuda":
            # Ampere (8.0) and later have bf16. torch.cuda.is_bf16_supported is also true where bf16 is emulated.
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
        """Return bus bandwidth in GB/s by size in MiB, of an all-reduce in all groups at once. Groups of one have none.

        2 (n - 1) / n x size / seconds (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
        """
        count = len(groups[0])
        if count == 1:
            return {}
        process_groups = [self.dist.new_group(ranks) for ranks in groups]
        own_group = next(group for group, ranks in zip(process_groups, groups) if self.rank in ranks)
        bandwidths: dict[str, float] = {}
        for mib in SIZES_MIB[self.kind]:
            buffer = self.torch.zeros(mib << 18, dtype=self.torch.float32, device=self.device)
            each = self.together(partial(self.dist.all_reduce, buffer, group=own_group))
            bandwidths[str(mib)] = 2 * (count - 1) / count * (mib << 20) / each / 1e9
            if self.slowest(each) > SECONDS[self.kind]:
                break
        return bandwidths

    def exchanges(self) -> dict[str, float]:
        """Return GB/s in one direction by neighbouring node. Both nodes of a pair send at once, on all their ranks."""
        bandwidths: dict[str, float] = {}
        mib = PAIR_MIB[self.kind]
        sent = self.torch.zeros(mib << 18, dtype=self.torch.float32, device=self.device)
        received = self.torch.empty_like(sent)
        for pairs in rounds(self.nodes):
            other = next((a + b - self.node for a, b in pairs if self.node in (a, b)), None)

            def exchange(other: int | None = other) -> None:
                if other is None:
                    return
                peer = other * self.per_node + self.local
                operation = self.dist.P2POp
                both = [operation(self.dist.isend, sent, peer), operation(self.dist.irecv, received, peer)]
                for work in self.dist.batch_isend_irecv(both):
                    work.wait()

            each = self.together(exchange)
            if other is not None:
                bandwidths[str(other)] = (mib << 20) / each / 1e9
        return bandwidths

    def together(self, call: Callable[[], Any]) -> float:
        """Return the seconds of one `call` after a first one, which connects. All ranks make equally many calls."""
        self.seconds(call, 1)
        self.dist.barrier()
        times = self.times_for(self.seconds(call, 1), SECONDS[self.kind])
        self.dist.barrier()
        return self.seconds(call, times) / times

    def times_for(self, once_s: float, seconds: float) -> int:
        """Return the number of calls within `seconds` on the slowest rank. It is equal on all ranks."""
        return max(1, min(MOST_TIMES, int(seconds / max(self.slowest(once_s), 1e-6))))

    def slowest(self, seconds: float) -> float:
        """Return the largest figure of all ranks."""
        value = self.torch.tensor(seconds, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(value, op=self.dist.ReduceOp.MAX)
        return float(value.item())

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        """Return the seconds of this number of calls in sequence, until the device has finished them."""
        self.wait()
        begun = time.perf_counter()
        for _ in range(times):
            call()
        self.wait()
        return time.perf_counter() - begun

    def wait(self) -> None:
        if self.kind == "cuda":
            self.torch.cuda.synchronize()


if __name__ == "__main__":
    main()
