"""The exported scripts over real sshd servers: copied, started and ended together. test_import.py trains with them."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo.local_nodes import LocalNodes
from app.demo.tiny_model import DATA_FOLDER, DATASET, MODEL_FOLDER, TEMPLATE
from backend.engines import export
from backend.job.mapping import parse_job
from tests.nodes import ssh_nodes
from tests.waiting import wait_for

# Replaces the node's python: one child that lasts, as a rank does, and one that fails on node 1.
LASTING = """\
#!/bin/sh
sleep 300 &
echo "$$ $!" > {folder}/processes.$NODE_RANK
wait
"""
FAILING_ON_1 = """\
#!/bin/sh
if [ "$NODE_RANK" = 1 ]; then
  while [ ! -s {folder}/processes.0 ]; do sleep 0.05; done
  exit 7
fi
echo $$ > {folder}/processes.$NODE_RANK
exec sleep 300
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalNodes]:
    """Run two sshd servers, and put an ssh that knows their host keys in tmp_path/bin."""
    options = f"-F none -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={tmp_path}/known_hosts"
    write_program(tmp_path / "bin" / "ssh", f'#!/bin/sh\nexec /usr/bin/ssh {options} "$@"\n')
    with ssh_nodes(tmp_path / "cluster", nodes=2) as path:
        yield path


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o700)
    return path


def launch(folder: Path, mapping: dict[str, Any]) -> "subprocess.Popen[str]":
    """Run launch.sh of the job in its own session."""
    job, problems = parse_job(mapping)
    assert job is not None, problems
    exported = folder / "exported"
    exported.mkdir()
    for name, text in export(job).items():
        (exported / name).write_text(text)
    return subprocess.Popen(
        ["bash", exported / "launch.sh"],
        env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def job_mapping(cluster: LocalNodes, python: Path, folder: Path) -> dict[str, Any]:
    return {
        "name": "plain",
        "cluster": cluster.cluster_mapping(str(python)),
        "model": {"preset": "qwen3-0.6b", "path": str(folder / MODEL_FOLDER)},
        "engine": "llamafactory-ddp",
        "training": {
            "dataset": DATASET,
            "dataset_dir": str(folder / DATA_FOLDER),
            "template": TEMPLATE,
            "output_dir": str(folder / "runs"),
            "precision": "fp32",
        },
    }


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def recorded(folder: Path, rank: int) -> list[int]:
    path = folder / f"processes.{rank}"
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
    return [int(word) for word in path.read_text().split()]


@pytest.mark.e2e
def test_ending_the_launcher_ends_every_process_on_every_node(cluster: LocalNodes, tmp_path: Path) -> None:
    python = write_program(tmp_path / "bin" / "python", LASTING.format(folder=tmp_path))
    launcher = launch(tmp_path, job_mapping(cluster, python, tmp_path))
    processes = recorded(tmp_path, 0) + recorded(tmp_path, 1)
    assert len([pid for pid in processes if is_alive(pid)]) == 4
    os.kill(launcher.pid, signal.SIGTERM)
    launcher.communicate(timeout=280)
    assert launcher.returncode == 130
    wait_for(lambda: not any(is_alive(pid) for pid in processes))


@pytest.mark.e2e
def test_one_nodes_failure_ends_the_others_and_is_reported(cluster: LocalNodes, tmp_path: Path) -> None:
    python = write_program(tmp_path / "bin" / "python", FAILING_ON_1.format(folder=tmp_path))
    launcher = launch(tmp_path, job_mapping(cluster, python, tmp_path))
    output, _ = launcher.communicate(timeout=280)
    assert (launcher.returncode, output.splitlines()[-1]) == (7, "a node ended with status 7; see logs/")
    wait_for(lambda: not any(is_alive(pid) for pid in recorded(tmp_path, 0)))
