"""The micro-batch of a timed row that does not publish it: the fastest one that fits.

We assume that the authors of a published speed searched for it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.megatron import pipeline_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.tuning import Tuning
from backend.estimate.time.efficiency import default_efficiency
from benchmarks.machines import published_gpu
from benchmarks.shapes import NotModelled
from benchmarks.timed_plan import number
from benchmarks.timed_run import Timed

SIZES = (1, 2, 4)
"""Micro-batches to try, in sequences."""


def fastest_that_fits(row: Mapping[str, Any], build: Callable[[Mapping[str, Any]], Timed]) -> Timed:
    """Return the run that `build` returns for a row, with its own micro-batch or the fastest of SIZES that fits.

    If none fits, the smallest is taken. Raises NotModelled if `build` does for every size.
    """
    if number(row.get("mbs")) or not number(row.get("gbs")):
        return build(row)
    candidates: list[Timed] = []
    refused = NotModelled("not published: mbs")
    for size in SIZES:
        try:
            candidates.append(build({**row, "mbs": size}))
        except NotModelled as problem:
            refused = problem
    if not candidates:
        raise refused
    room = published_gpu(str(row.get("hardware"))).memory_gib * 2**30
    fitting = [timed for timed in candidates if _peak(timed) <= room] or candidates[:1]
    return min(fitting, key=lambda timed: timed.seconds(default_efficiency()))


def _peak(timed: Timed) -> float:
    """Return the peak bytes of the GPU with the highest peak."""
    plan, run = timed.time_context.plan, timed.time_context.run
    if not run.megatron:
        return float(data_parallel_memory(timed.layers, plan, run.memory, Tuning(trained=Trained())).peak)
    return max(float(stage.peak) for stage in pipeline_memory(timed.layers, plan, run.memory, Trained()))
