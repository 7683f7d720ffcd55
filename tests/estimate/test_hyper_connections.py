"""Hyper-connections under LoRA: peaks that torch's MemTracker counted (benchmarks/step_peak.py --families NAME --lora).

Adapters get no weight gradients of the layers, so that the streams are most of what a step needs.
"""

import pytest

from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import STATIC_BYTES
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from backend.job.rules.sparse import ENTRY_TARGETS
from backend.job.traits import TRAITS
from benchmarks.small_models import NEWER_MODELS

PEAKS = {
    # Its norms stay in fp32, and so do the streams after the first FFN.
    ("deepseek_v4", "full"): 54.1,
    ("deepseek_v4", "none"): 112.0,
    # Its streams have 16 bits, and each addition to them is computed in fp32.
    ("hy_v4", "full"): 47.7,
    ("hy_v4", "none"): 96.0,
}
"""Type and recompute -> MiB."""
TARGETS = {"deepseek_v4": ENTRY_TARGETS, "hy_v4": "all"}


@pytest.mark.parametrize(("name", "recompute"), PEAKS)
def test_the_peak_of_a_step_of_adapters_is_near_that_of_torchs_tracker(name, recompute):
    layers = model_layers(parse_model(NEWER_MODELS[name]))
    plan = Plan(sequence_length=256, micro_batch=2, micro_batches=2, recompute=recompute, attention="scores")
    tuning = Tuning(trained=Trained(), method="lora", lora_targets=TARGETS[name])
    memory = data_parallel_memory(layers, plan, TRAITS["llamafactory-ddp"].memory, tuning)
    assert (memory.peak - STATIC_BYTES) / 2**20 == pytest.approx(PEAKS[name, recompute], rel=0.05)
