"""CPU time of one estimate, also as a ratio to a fixed pure-Python loop in the same run.

    python -m benchmarks.speed

Compare machines, and runs on a busy machine, by the ratio. Each estimate has another job object with another plan:
micro-batch, accumulation, recompute, sequence parallel and distributed optimizer change. The caches
of earlier estimates hold only what no plan changes:

- the model's layers and sums over their operators, the machine's speeds, and FLOPs per token;
- for sizes of TP, PP and EP, how the layers are cut into stages, and the parameters on a rank of each stage;
- for a number of micro-batches, the order of the passes.
"""

import itertools
import statistics
import time
from collections.abc import Callable

from backend.estimate import estimate
from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.mapping import with_values

LOOP = 10_000
TIMES = 300
TARGET_S = 150e-6
"""Target of the median CPU time."""
PLANS = {
    "Qwen3-VL 8B, TP4": {"model.preset": "qwen3-vl-8b", "parallel.tensor": 4},
    "Qwen3-VL 8B, TP2 PP2 VPP2": {
        "model.preset": "qwen3-vl-8b",
        "parallel.tensor": 2,
        "parallel.pipeline": 2,
        "parallel.virtual_pipeline": 2,
    },
    "Qwen3 30B-A3B, PP4 EP8": {"model.preset": "qwen3-30b-a3b", "parallel.pipeline": 4, "parallel.expert": 8},
    "Qwen3 8B, DDP": {"model.preset": "qwen3-8b", "engine": "llamafactory-ddp"},
}

VARIED = {
    "parallel.sequence": (True, False),
    "parallel.distributed_optimizer": (True, False),
    "training.gradient_accumulation_steps": (8, 16),
    "parallel.recompute": ("none", "full"),
    "training.micro_batch_size": (1, 2, 4),
}


def main() -> None:
    """Print microseconds per estimate, and their ratio to the loop."""
    job = Job(cluster=Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8), model=Model(preset="qwen3-8b"))
    loop_s = cpu_seconds(plain_loop, 50)
    print(f"loop of {LOOP} multiply-adds: {loop_s * 1e6:.0f} us of CPU time; ratios are to it")
    for name, values in PLANS.items():
        jobs = iter(plans_like(with_values(job, values)))
        seconds = cpu_seconds(lambda jobs=jobs: estimate(next(jobs)), TIMES - 1)
        print(f"{name:28} {seconds * 1e6:7.1f} us an estimate, ratio {seconds / loop_s:6.3f}")
    print(f"target: {TARGET_S * 1e6:.0f} us")


def plans_like(job: Job) -> list[Job]:
    """Return jobs of the same model on the same cluster, each with another plan than the one before."""
    choices = itertools.cycle(itertools.product(*VARIED.values()))
    return [with_values(job, dict(zip(VARIED, next(choices), strict=True))) for _ in range(TIMES)]


def plain_loop(rounds: int = LOOP) -> int:
    """Run the loop of the ratios."""
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def cpu_seconds(run: Callable[[], object], count: int) -> float:
    """Return the median CPU time of a call, after one call that fills the caches."""
    run()
    times = []
    for _ in range(count):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return statistics.median(times)


if __name__ == "__main__":
    main()
