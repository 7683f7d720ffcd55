"""The batch script that Slurm reads: options that the job requests, without anything for a shell to interpret."""

import shlex
import subprocess
from pathlib import Path

import pytest

from app.main import main
from backend.engines.slurm import batch_script
from backend.job.mapping import load_job

JOB = """
version: 1
cluster:
  gpu: h100-80g
  nodes: 2
  gpus_per_node: 8
  environments: {llamafactory: {python: /opt/lf/bin/python}}
  scheduler: {login: {address: login}, partition: gpu, time_limit: "1.5"}
model: {preset: qwen3-8b, path: /models/qwen3-8b}
training: {dataset: demo, dataset_dir: /data, template: qwen3, output_dir: /runs}
parallel: {tensor: 2}
"""


def test_render_for_slurm_writes_scripts_that_bash_can_read(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    out = tmp_path / "out"
    assert main(["render", str(tmp_path / "job.yaml"), "--for", "slurm", "--out", str(out)]) == 0
    script = (out / "job.sbatch").read_text()
    for line in ("--nodes=2", "--gres=gpu:8", "--partition=gpu", "--time=0-01:30:00", "--exclusive"):
        assert f"#SBATCH {line}\n" in script
    for name in ("job.sbatch", "node.sh"):
        subprocess.run(["bash", "-n", out / name], check=True)


def test_an_image_is_an_option_of_pyxis_with_the_folders_of_the_job(tmp_path: Path) -> None:
    """Canned: pyxis does not run here. https://github.com/NVIDIA/pyxis#usage has the options."""
    image = "nvcr.io#nvidia/pytorch:25.06-py3"
    text = JOB.replace("partition: gpu", f'partition: gpu, container: "{image}"')
    mounts = "/models/qwen3-8b:/models/qwen3-8b,/data:/data,/runs:/runs"
    (tmp_path / "job.yaml").write_text(text)
    assert main(["render", str(tmp_path / "job.yaml"), "--for", "slurm", "--out", str(tmp_path / "out")]) == 0
    exported = (tmp_path / "out" / "job.sbatch").read_text()
    job, problems = load_job(text)
    assert job is not None, problems
    launched = batch_script(job, "megaboard-x-1", "/run root/x/1", ["python3", "supervisor.py"], [29500])
    for script, expected in ((exported, mounts), (launched, f"/run root/x/1:/run root/x/1,{mounts}")):
        (step,) = (part for part in script.split("\n\n") if "\nsrun " in f"\n{part}")
        line = step[step.index("srun ") :].replace("\\\n", " ").splitlines()[0]
        words = shlex.split(line.removesuffix("&"))
        assert f"--container-image={image}" in words
        assert f"--container-mounts={expected}" in words
        path = tmp_path / "script.sh"
        path.write_text(script)
        subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize("name", ["partition", "account", "qos", "constraint", "time_limit", "container"])
@pytest.mark.parametrize("value", ["gpu; reboot", "a b", "$(id)", "-x", "a\\n#SBATCH --wrap=id", "`id`", "a'b"])
def test_a_value_with_shell_syntax_is_refused(name: str, value: str) -> None:
    text = JOB.replace('partition: gpu, time_limit: "1.5"', f'{name}: "{value}"')
    job, problems = load_job(text)
    assert job is None
    assert [(problem.code, problem.field) for problem in problems] == [("bad_format", f"cluster.scheduler.{name}")]


def test_a_python_whose_path_has_an_equals_sign_is_started_and_not_read_as_a_variable(tmp_path: Path) -> None:
    python = tmp_path / "a=b" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$@" $NODE_RANK\n')
    python.chmod(0o700)
    (tmp_path / "job.yaml").write_text(JOB.replace("/opt/lf/bin/python", str(python)))
    assert main(["render", str(tmp_path / "job.yaml"), "--for", "slurm", "--out", str(tmp_path / "out")]) == 0
    node = {"PATH": "/usr/bin:/bin", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "1"}
    script = tmp_path / "out" / "node.sh"
    done = subprocess.run(["bash", script], env=node, capture_output=True, text=True, check=True)
    assert done.stdout == "-m llamafactory.cli train config.yaml 1\n"
