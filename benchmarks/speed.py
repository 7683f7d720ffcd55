"""Time of one estimate, also as a ratio to a fixed pure-Python loop in the same run.

    python -m benchmarks.speed

The ratio is what to compare between machines and between runs on a busy one.
"""

import statistics
import time
from collections.abc import Callable

from backend.estimate import estimate
from backend.job.job import Cluster, Job, Model
from backend.job.mapping import with_values

LOOP = 10_000
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


def main() -> None:
    """Print microseconds an estimate, also over the loop's time."""
    job = Job(cluster=Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8), model=Model(preset="qwen3-8b"))
    loop_s = cpu_seconds(plain_loop, 50)
    print(f"loop of {LOOP} multiply-adds: {loop_s * 1e6:.0f} us of CPU time; ratios are to it")
    for name, values in PLANS.items():
        tried = with_values(job, values)
        seconds = cpu_seconds(lambda tried=tried: estimate(tried), 300)
        print(f"{name:28} {seconds * 1e6:7.1f} us an estimate, ratio {seconds / loop_s:6.3f}")


def plain_loop(rounds: int = LOOP) -> int:
    """What ratios are to."""
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def cpu_seconds(run: Callable[[], object], times: int) -> float:
    """Median CPU time of a call, after one to warm the caches."""
    run()
    taken = []
    for _ in range(times):
        begin = time.process_time()
        run()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
