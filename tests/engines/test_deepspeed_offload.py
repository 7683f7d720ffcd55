"""DeepSpeed 0.18.4 loses gradients of ZeRO-2's offloaded optimizer, as broken_versions.py says."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(600), needs_node_environment]


def test_of_four_micro_batches_the_first_and_the_last_count_alone(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "",
                   "TORCH_EXTENSIONS_DIR": str(tmp_path)}  # fmt: skip
    command = [NODE_PYTHON, "-W", "ignore", Path(__file__).with_name("offloaded_gradients.py"), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    changes = json.loads(done.stdout.splitlines()[-1])
    assert changes == {"none": (1 + 10 + 100 + 1000) / 4, "offload": (1 + 1000) / 4}
