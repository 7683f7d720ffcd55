"""The formulas of norms, rotary embedding, adapters and experts agree with torch's operations in the real modules.

The modules run in the node environment, because an upgrade of transformers or PEFT may change them.
"""

import pytest

from backend.estimate.time.adapter_run import PLAIN, UPCAST
from backend.estimate.time.operator_kernels import (
    ALTUP_MOVED,
    ALTUP_STARTED,
    GROUPED_MOVED,
    RMS_NORM_MOVED,
    RMS_NORM_STARTED,
    ROPE_STARTED,
    SPARSE_MOVED,
    SPARSE_STARTED,
)
from tests.estimate.printed import printed_by
from tests.nodes import needs_node_environment

pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment]


def test_norms_adapters_and_experts_do_what_the_real_modules_do():
    real = printed_by("benchmarks.moved_bytes")
    assert real["rms_norm"] == pytest.approx(RMS_NORM_MOVED, rel=0.05)
    assert real["rms_norm_started"] == list(RMS_NORM_STARTED)
    assert real["rope_started"] == list(ROPE_STARTED)
    assert real["adapter"]["plain"] == pytest.approx(PLAIN, rel=0.02)
    assert real["adapter"]["upcast"] == pytest.approx(UPCAST, rel=0.02)
    for copies, steps in real["altup"].items():
        assert steps.pop("sparse") == pytest.approx([*SPARSE_MOVED, *SPARSE_STARTED], rel=0.01)
        for step, counted in steps.items():
            forms = [row[at : at + 2] for row in (ALTUP_MOVED[step], ALTUP_STARTED[step]) for at in (0, 2)]
            ours = [each * int(copies) + beside for each, beside in forms]
            assert counted == pytest.approx(ours, rel=0.01), step
    assert real["experts"]["64"] == real["experts"]["8"], "one grouped product, however many experts"
    for part, counted in real["experts_moved"].items():
        assert counted == pytest.approx(GROUPED_MOVED[part], rel=0.02), part
