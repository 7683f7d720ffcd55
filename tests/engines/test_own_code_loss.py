"""transformers' Trainer takes the mean loss of a model with its own code for a part of a sum, as the preflight says."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from backend.node.checks.model_code import undivided_loss
from tests.e2e import unknown_models
from tests.node.test_model_code import DECLARED, MINE, NAME, OPEN
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(900), needs_node_environment]

RANKS, ACCUMULATION = 2, 2
CODE = {"named": MINE, "declared": DECLARED, "open": OPEN}


def test_a_real_step_of_the_code_that_the_preflight_names_has_a_loss_and_gradient_that_are_too_large(
    tmp_path: Path,
) -> None:
    for name, text in CODE.items():
        shutil.copytree(Path(unknown_models.__file__).with_name("own_code"), tmp_path / name)
        (tmp_path / name / "modeling_mine.py").write_text(text)
        (tmp_path / name / "config.json").write_text(json.dumps(unknown_models.MINE))
    assert [undivided_loss(str(tmp_path / name)) for name in CODE] == ["", "", NAME]
    launcher = [NODE_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    program = Path(__file__).with_name("own_code_loss.py")
    done = subprocess.run(
        [*launcher, program, str(ACCUMULATION), *(tmp_path / name for name in CODE)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    named, declared, grown = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[{")))
    assert declared == named
    for figure in ("loss", "grad_norm"):
        assert grown[figure] == pytest.approx(named[figure] * RANKS * ACCUMULATION, rel=1e-3)
