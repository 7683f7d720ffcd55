"""Which adapters mamba_ssm's fused kernel leaves without a gradient, in one step of small models on CPU.

The rule `adapters_not_trained` says so. A stand-in takes the place of the kernel (benchmarks/kernel_memory.py);
transformers' class calls it as it calls the kernel.
"""

import json
import subprocess
from pathlib import Path

import pytest

from backend.job.rules.adapters import FUSED_TYPES, GRANITE_TARGETS, MAMBA_TARGETS
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment]
PROGRAM = """
import json, sys
from benchmarks import step_peak
[name, targets] = sys.argv[1:]
step_peak.NAMED_TARGETS[name] = targets.split(",")
case = step_peak.family_cases([name], lora=True)[-1]
model = step_peak.built(case)
model(**step_peak.inputs_of(case)).loss.backward()
print(json.dumps([key for key, each in model.named_parameters() if each.requires_grad and each.grad is None]))
"""


def without_gradient(name: str, targets: str) -> list[str]:
    command = [NODE_PYTHON, "-W", "ignore", "-c", PROGRAM, name, targets]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(result.stdout.splitlines()[-1])
    return names


@pytest.mark.parametrize("name", FUSED_TYPES)
def test_the_fused_kernel_skips_adapters_on_out_proj_and_no_others(name: str) -> None:
    targets = GRANITE_TARGETS if name == "granitemoehybrid" else MAMBA_TARGETS
    assert without_gradient(name, targets) == []
    skipped = without_gradient(name, f"{targets},out_proj")
    assert skipped
    assert {"out_proj" in each for each in skipped} == {True}
