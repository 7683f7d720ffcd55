"""Manifests for Kubernetes, read with the published models of Kubeflow Trainer and JobSet."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.main import main
from backend.engines import export_kubernetes
from backend.engines.kubernetes import FOLDER
from backend.job.job import Job
from backend.job.mapping import with_values
from tests.engines.jobs import ddp, sharded


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """Return the published models by kind. Their import takes a second, so only the tests that use them wait for it."""
    from kubeflow_trainer_api.models.io_k8s_api_core_v1_config_map import IoK8sApiCoreV1ConfigMap
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

    return {
        "ConfigMap": IoK8sApiCoreV1ConfigMap,
        "TrainJob": TrainerV1alpha1TrainJob,
        "JobSet": JobsetV1alpha2JobSet,
    }


def documents(job: Job, file: str) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(export_kubernetes(job)[file])}


@pytest.mark.slow
@pytest.mark.parametrize("file", ["trainjob.yaml", "jobset.yaml"])
@pytest.mark.parametrize("job", [ddp(), sharded("zero3")], ids=["ddp", "zero3"])
def test_every_field_is_one_of_the_published_schema(models: dict[str, Any], job: Job, file: str) -> None:
    for kind, document in documents(job, file).items():
        # from_dict checks types; what it does not know is missing afterwards.
        assert models[kind].from_dict(document).to_dict() == document


def test_nodes_ranks_and_gpus_are_those_of_the_job() -> None:
    job = with_values(ddp(), {"cluster.nodes": 4, "cluster.gpus_per_node": 8, "cluster.hosts": ()})
    trainer = documents(job, "trainjob.yaml")["TrainJob"]["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (4, 8)
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": "8"}}
    (node,) = documents(job, "jobset.yaml")["JobSet"]["spec"]["replicatedJobs"]
    assert (node["template"]["spec"]["parallelism"], node["template"]["spec"]["completions"]) == (4, 4)


def test_a_name_that_is_no_dns_label_becomes_one() -> None:
    job = with_values(ddp(), {"name": "Qwen3_VL.8B-" + "x" * 50})
    name = documents(job, "jobset.yaml")["JobSet"]["metadata"]["name"]
    assert name == "qwen3-vl-8b-" + "x" * 28


def test_the_start_script_runs_the_engines_launcher_with_the_ranks_of_the_node(tmp_path: Path) -> None:
    script = documents(ddp(), "trainjob.yaml")["ConfigMap"]["data"]["start.sh"].replace(FOLDER, str(tmp_path))
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@" $FORCE_TORCHRUN $NODE_RANK $NPROC_PER_NODE\n')
    (tmp_path / "python3").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_RANK": "1"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    ranks = ddp().cluster.gpus_per_node
    assert done.stdout == f"-m llamafactory.cli train config.yaml 1 1 {ranks}\n"


def test_the_command_line_writes_both_manifests(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: plan\ncluster: {gpu: h100-80g, nodes: 2, gpus_per_node: 8}\nmodel: {preset: qwen3-8b}\n")
    assert main(["render", str(file), "--for", "kubernetes", "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "trainjob.yaml").read_text()
    assert "fill-in" in text
    assert "subPath: fill-in/model" in text
