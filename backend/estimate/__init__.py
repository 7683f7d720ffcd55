"""The cost of a plan: memory, time and FLOPs. Pure functions of a job; its sizes are numbers or NumPy arrays.

Reading order: estimate.py, model_layers.py, saved_activations.py, megatron.py (or eager_activations.py,
hugging_face.py), schedule.py, simulate.py; for time: timing.py, step_time.py, layer_time.py, time_context.py,
communication.py, collectives.py, efficiency.py.
"""

from backend.estimate.estimate import (
    Estimate,
    MemoryEstimate,
    StageEstimate,
    estimate,
    estimate_memory,
    estimate_resolved,
)
from backend.estimate.memory.explain import TERMS, explain
from backend.estimate.memory.fit import (
    accuracy_of,
    is_close,
    kind_of_run,
    may_fit_gib,
    much_padding,
    near_the_limit,
    over_gpu_gib,
    over_host_gib,
    over_host_memory,
    over_memory,
    surely_fits_gib,
)
from backend.estimate.memory.memory_term import Product
from backend.estimate.report import to_json
from backend.estimate.time.gradient_exchange import gradient_exchange
from backend.estimate.time.host_wait import waits_for_host
from backend.estimate.time.speed_up import speed_up

__all__ = [
    "TERMS",
    "Estimate",
    "MemoryEstimate",
    "Product",
    "StageEstimate",
    "accuracy_of",
    "estimate",
    "estimate_memory",
    "estimate_resolved",
    "explain",
    "gradient_exchange",
    "is_close",
    "kind_of_run",
    "may_fit_gib",
    "much_padding",
    "near_the_limit",
    "over_gpu_gib",
    "over_host_gib",
    "over_host_memory",
    "over_memory",
    "speed_up",
    "surely_fits_gib",
    "to_json",
    "waits_for_host",
]
