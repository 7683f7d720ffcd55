"""A user's LLaMA-Factory YAML is imported and launched on two demo nodes by the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.demo import tiny_model
from app.demo.local_nodes import LocalNodes
from backend.job.mapping import dump_mapping
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e]

ROOT = Path(__file__).parents[2]
NODES = 2
YAML = """\
model_name_or_path: {folder}/{model}
stage: sft
do_train: true
finetuning_type: full
dataset: {dataset}
dataset_dir: {folder}/{data}
template: {template}
cutoff_len: 64
output_dir: {folder}/output/yaml-run
overwrite_output_dir: true
per_device_train_batch_size: 4
learning_rate: 5e-3
max_steps: 12
logging_steps: 1
evaluation_strategy: no
use_cpu: true
ddp_timeout: 180000000
"""


def megaboard(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "app.main", *arguments],
        cwd=ROOT,
        env={**os.environ, "MEGABOARD_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_yaml_with_its_traps_is_imported_and_trains_on_two_nodes(cluster: LocalNodes, tmp_path: Path) -> None:
    folder, home = cluster.folder, tmp_path / "home"
    subprocess.run([NODE_PYTHON, tiny_model.__file__, folder], check=True)
    (home / "clusters").mkdir(parents=True)
    machines = json.loads(json.dumps({**cluster.cluster_mapping(str(NODE_PYTHON)), "gpu": "cpu"}))
    (home / "clusters" / "demo.yaml").write_text(dump_mapping(machines))
    (home / "known_hosts").write_text((folder / "known_hosts").read_text())
    names = {"model": tiny_model.MODEL_FOLDER, "data": tiny_model.DATA_FOLDER, "dataset": tiny_model.DATASET}
    source = tmp_path / "sft.yaml"
    source.write_text(YAML.format(folder=folder, template=tiny_model.TEMPLATE, **names))
    job = tmp_path / "job.yaml"
    assert "13 of 17 keys" in megaboard(home, "import", str(source), "--cluster", "demo", "--out", str(job))
    assert "Finished" in megaboard(home, "launch", str(job), "--wait")
    losses = []
    for path in sorted(folder.rglob("steps.rank*.jsonl")):
        losses.append([json.loads(line)["loss"] for line in path.read_text().splitlines()])
    assert len(losses) == 2
    assert losses[0] == losses[1]
    assert len(losses[0]) == 12
    assert losses[0][-1] < losses[0][0]
