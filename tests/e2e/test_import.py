"""A user's LLaMA-Factory YAML is imported, and the plain scripts that the job renders to train on two demo nodes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.demo import tiny_model
from app.demo.local_nodes import LocalNodes
from backend.job.mapping import dump_mapping
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.engines]

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


def run_plain_scripts(scripts: Path, known_hosts: Path) -> None:
    """Run launch.sh as a user does, with an ssh that knows the demo nodes."""
    ssh = scripts / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F none -o UserKnownHostsFile={known_hosts} "$@"\n')
    ssh.chmod(0o700)
    done = subprocess.run(
        ["bash", scripts / "launch.sh"],
        env={**os.environ, "PATH": f"{ssh.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    logs = "".join(log.read_text()[-3000:] for log in (scripts / "logs").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs


def test_a_yaml_with_its_traps_is_imported_and_its_plain_scripts_train_on_two_nodes(
    cluster: LocalNodes, tiny: Path, tmp_path: Path
) -> None:
    folder, home = cluster.folder, tmp_path / "home"
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    (home / "clusters").mkdir(parents=True)
    machines = json.loads(json.dumps({**cluster.cluster_mapping(str(NODE_PYTHON)), "gpu": "cpu"}))
    (home / "clusters" / "demo.yaml").write_text(dump_mapping(machines))
    names = {"model": tiny_model.MODEL_FOLDER, "data": tiny_model.DATA_FOLDER, "dataset": tiny_model.DATASET}
    source = tmp_path / "sft.yaml"
    source.write_text(YAML.format(folder=folder, template=tiny_model.TEMPLATE, **names))
    job, scripts = tmp_path / "job.yaml", tmp_path / "scripts"
    assert "13 of 17 keys" in megaboard(home, "import", str(source), "--cluster", "demo", "--out", str(job))
    megaboard(home, "render", str(job), "--out", str(scripts))
    run_plain_scripts(scripts, folder / "known_hosts")
    (log,) = (folder / "output").rglob("trainer_log.jsonl")
    losses = [row["loss"] for row in map(json.loads, log.read_text().splitlines()) if "loss" in row]
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    # One random state per rank: they trained together, not each alone.
    assert len(list(log.parent.glob("checkpoint-12/rng_state_*.pth"))) == NODES
