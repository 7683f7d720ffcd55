"""The DeepSpeed of our sets keeps all gradients of ZeRO-2's offloaded optimizer; broken_versions.py names those that do
not (0.18.4: 250.25 with offload, the mean of the first and the last micro-batch with the others as 0)."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(600), needs_node_environment]


def test_all_of_four_micro_batches_count_with_and_without_offload(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "",
                   "TORCH_EXTENSIONS_DIR": str(tmp_path)}  # fmt: skip
    command = [NODE_PYTHON, "-W", "ignore", Path(__file__).with_name("offloaded_gradients.py"), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    changes = json.loads(done.stdout.splitlines()[-1])
    mean = (1 + 10 + 100 + 1000) / 4
    assert changes == {"none": mean, "offload": mean}
