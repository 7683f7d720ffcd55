"""A calibration is stored with its cluster, and the rest of the cluster's file stays the same."""

from pathlib import Path

import pytest

from app.calibration import as_mapping, find_cluster, keep_in_cluster, read_calibration
from app.home import named_cluster
from backend.job.cluster import Calibration
from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.job.problems import ProblemsError

MEASURED = Calibration(gpu="h100-80g", run="20261121-101500-job-0a1b", run_date="2026-11-21", time_ratio=1.09)
FILE = """# our four nodes
gpu: h100-80g   # SXM
nodes: 1
gpus_per_node: 8
calibration:
  gpu: h100-80g
  time_ratio: 1.5

hosts:
  - {address: 10.0.0.1, port: 2222}  # master
"""


def cluster_file(home: Path, text: str = FILE, name: str = "lab") -> Path:
    path = home / "clusters" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def job_with(*hosts: dict[str, object], gpu: str = "h100-80g") -> Job:
    job, _ = parse_job({"cluster": {"gpu": gpu, "nodes": 1, "gpus_per_node": 8, "hosts": list(hosts)}})
    assert job is not None
    return job


def test_a_named_clusters_file_keeps_its_lines_and_comments(tmp_path: Path):
    path = cluster_file(tmp_path)
    assert keep_in_cluster(tmp_path, "lab", MEASURED) == path
    text = path.read_text()
    assert "# our four nodes" in text
    assert "# master" in text
    assert text.count("calibration:") == 1
    assert read_calibration(named_cluster(tmp_path, "lab")[1]) == MEASURED


def test_a_file_in_one_line_keeps_its_content(tmp_path: Path):
    cluster_file(tmp_path, "{gpu: h100-80g, nodes: 1, gpus_per_node: 8, calibration: {time_ratio: 2.0}}")
    keep_in_cluster(tmp_path, "lab", MEASURED)
    assert named_cluster(tmp_path, "lab")[1] == {
        "gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8, "calibration": as_mapping(MEASURED),
    }  # fmt: skip


def test_a_cluster_of_another_gpu_is_not_changed(tmp_path: Path):
    path = cluster_file(tmp_path, FILE.replace("h100-80g", "a100-80g"))
    with pytest.raises(ProblemsError, match="calibration_other_gpu"):
        keep_in_cluster(tmp_path, "lab", MEASURED)
    assert "1.5" in path.read_text()


@pytest.mark.parametrize("name", ["nowhere", "../lab", ""])
def test_an_unknown_cluster_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ProblemsError, match="unknown_cluster"):
        keep_in_cluster(tmp_path, name, MEASURED)


def test_a_runs_cluster_is_the_one_with_its_hosts(tmp_path: Path):
    cluster_file(tmp_path)
    cluster_file(tmp_path, "gpu: h100-80g\n", "bare")
    ours = {"address": "10.0.0.1", "port": 2222}
    assert find_cluster(tmp_path, job_with(ours)) == "lab"
    assert find_cluster(tmp_path, job_with({"address": "10.0.0.1"})) is None
    assert find_cluster(tmp_path, job_with()) is None
    assert find_cluster(tmp_path, job_with(ours, gpu="a100-80g")) is None
    cluster_file(tmp_path, name="twin")
    assert find_cluster(tmp_path, job_with(ours)) is None


@pytest.mark.parametrize("cluster", [None, {}, {"calibration": 3}, {"calibration": {"time_ratio": "x"}}])
def test_an_unreadable_calibration_counts_as_empty(cluster: object):
    assert read_calibration(cluster) == Calibration()
