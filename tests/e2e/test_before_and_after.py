"""After a run on data that one node tokenised, the saved model is exported and served.

Real sshd, supervisors, torchrun and LLaMA-Factory, on CPU. What the tokenised data are: test_engines.py.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.engine_runs import NODE_PYTHON, ROOT, Case, DemoCluster, Outcome
from tests.nodes import skip_without_node_environment, ssh_nodes
from tools.programs import MCORE_ADAPTER, mcore_adapter_source

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1800)]

LORA = {"training.method": "lora", "training.learning_rate": 2e-2, "training.prepare.shuffle": True}
MEGATRON = {
    "training.precision": "bf16",
    "training.learning_rate": 2e-3,
    "training.prepare.shuffle": True,
    "parallel.tensor": 2,
    "parallel.distributed_optimizer": False,
}
LOSSES = """
import sys, datasets, torch, transformers
rows = datasets.load_from_disk(sys.argv[1])["train"].select(range(32))
for folder in sys.argv[2:]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        losses = [model(torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss for row in rows]
    print(float(torch.stack(losses).mean()))
"""


class Life:
    """One run from its data to its exported model."""

    def __init__(self, demo: DemoCluster, name: str, case: Case) -> None:
        self.demo = demo
        self.outcome: Outcome = demo.run(name, case)
        assert self.outcome.state == 0, self.outcome.output
        (maker,) = demo.folder.glob(f"run/*-{name}-*/1/node0")
        self.nodes = [maker, maker.with_name("node1")]
        self.run = maker.parent.parent.name
        config = yaml.safe_load((self.nodes[1] / "config.yaml").read_text())
        self.data = Path(config["tokenized_path"])

    def export(self) -> Path:
        """Return the folder that `megaboard export` names."""
        done = subprocess.run(
            [sys.executable, "-m", "app.main", "--lang", "en", "export", self.run],
            env={**os.environ, "MEGABOARD_HOME": str(self.demo.home)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        match = re.search(r"vllm serve (\S+)", done.stdout)
        assert match, done.stdout
        return Path(match[1])

    def losses(self, *folders: Path) -> list[float]:
        """Return the mean loss of each model on the first rows of the data."""
        return [float(line) for line in _node_python(LOSSES, self.data, *folders).split()]


def _node_python(script: str, *arguments: Path) -> str:
    command = [str(NODE_PYTHON), "-W", "ignore", "-c", script, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[DemoCluster]:
    skip_without_node_environment()
    with ssh_nodes(tmp_path_factory.mktemp("lives"), nodes=2) as cluster:
        yield DemoCluster(cluster, tiny)


@pytest.fixture(scope="module")
def adapters(demo: DemoCluster) -> Life:
    return Life(demo, "adapters", Case(engine="llamafactory-ddp", values=LORA))


def test_merged_adapters_are_the_model_that_was_trained(adapters: Life) -> None:
    merged = adapters.export()
    assert not (merged / "adapter_config.json").exists()
    before, after = adapters.losses(adapters.demo.model("text"), merged)
    assert after < before - 0.1
    assert after == pytest.approx(adapters.outcome.losses[-1], abs=0.5)
    assert list(adapters.demo.folder.glob("run/*-export")) == []


def test_megatron_trains_on_such_data_and_becomes_a_hugging_face_model(demo: DemoCluster) -> None:
    source = mcore_adapter_source()
    if not source:
        pytest.skip(f"{MCORE_ADAPTER} does not name mcore_adapter's src folder (github.com/alibaba/ROLL, not on PyPI)")
    variables = {"MEGATRON_ON_CPU": "1", "TORCHDYNAMO_DISABLE": "1"}
    case = Case(engine="llamafactory-megatron", values=MEGATRON, environment=variables, paths=[source])
    life = Life(demo, "megatron", case)
    record = json.loads((life.data / "megaboard.json").read_text())
    assert (record["shuffle"], record["megatron"]) == (42, True)
    converted = life.export()
    before, after = life.losses(demo.model("text"), converted)
    assert after < before - 0.1
    assert after == pytest.approx(life.outcome.losses[-1], abs=0.5)
