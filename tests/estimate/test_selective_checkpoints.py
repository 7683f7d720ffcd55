"""What torchtitan's selective checkpoints run again, as the benchmarks read its rows."""

import pytest

from backend.estimate.model.model_layers import model_layers
from backend.estimate.time.recomputed_layer import every_second_product
from backend.job.job import Model
from backend.job.model.operators import Linear
from backend.job.presets import resolve_model
from benchmarks.timed import timed_rows

DENSE = model_layers(resolve_model(Model(preset="llama-3.1-8b"))).kinds[0]
ROW = {
    "source": "torchtitan test", "model": "Llama-2-13B", "hardware": "A100-80GB", "gpus": 64, "tp": 1, "fsdp": 64,
    "model_arch": {"hidden": 5120, "ffn": 13824, "layers": 40, "heads": 40, "kv": 40, "vocab": 32000},
    "zero": 3, "mbs": 2, "gbs": 128, "seq": 4096, "precision": "bf16", "notes": "FSDP2 eager",
}  # fmt: skip
PUBLISHED = {"none": 2162, "selective AC (layer)": 1914, "selective AC (op)": 1904}
"""Tokens/s of a GPU, pytorch/torchtitan 395a52627 docs/performance.md."""


def test_operator_wise_checkpoints_repeat_keys_output_and_one_half_of_gate_and_up():
    """They save the first, third, fifth and seventh product of a layer: queries, values, gate and down."""
    linears = [item for item in every_second_product(DENSE).operators if isinstance(item, Linear)]
    assert [(item.name, item.outputs, item.parts) for item in linears] == [
        ("qkv", 1024, 1),
        ("o", 4096, 1),
        ("up", 14336, 1),
    ]


@pytest.mark.parametrize("recompute", [name for name in PUBLISHED if name != "none"])
def test_selective_checkpoints_cost_what_torchtitan_published(recompute):
    """Against none: 13 and 14 % more time, by layer and by operator."""
    rows = [ROW | {"recompute": name, "measured_tokens_per_s_per_gpu": PUBLISHED[name]} for name in ("none", recompute)]
    runs, skips = timed_rows(rows)
    assert not skips
    plain, again = (run.seconds(run.time_context.efficiency) for run in runs)
    assert again / plain == pytest.approx(PUBLISHED["none"] / PUBLISHED[recompute], rel=0.02)
