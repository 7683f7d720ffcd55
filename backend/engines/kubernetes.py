"""A job as Kubernetes manifests: a TrainJob of Kubeflow Trainer, and a JobSet for clusters without Kubeflow.

Megaboard does not watch such runs. Field names are those of kubeflow-trainer-api, which the tests validate with. The
PET_ variables are those that the controller gives a container of a torch runtime
(https://github.com/kubeflow/trainer/blob/master/pkg/constants/constants.go).
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from backend.engines.shell_text import program_words, variable_lines
from backend.job.job import Job
from backend.job.launch_rules import environment_of, job_folders

RUNTIME = "torch-distributed"
"""The ClusterTrainingRuntime that Kubeflow Trainer installs for torch."""
FOLDER = "/megaboard"
"""Folder of the configuration in the pods."""
CLAIM = "fill-in-claim"
"""The volume claim with the model, the data and the output."""
IMAGE = "fill-in-image"
NAME_LENGTH = 40
"""The names of pods and services that are made of it have at most 63 characters."""

_START = """\
#!/usr/bin/env bash
# Starts the job {name} on one node of {nodes}. The manifest sets NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT.
set -euo pipefail
cd {folder}
export FORCE_TORCHRUN=1 NPROC_PER_NODE={ranks}
variables=(
{variables}
)
exec env "${{variables[@]}}" {python} -m {plain}
"""


def manifests(job: Job, variables: Mapping[str, str], files: Mapping[str, str], plain: str) -> dict[str, str]:
    """Return trainjob.yaml and jobset.yaml. `files` are those of the engine; `plain` is the module that it starts."""
    environment = environment_of(job, 0)
    container = environment.container if environment else None
    start = _START.format(
        name=job.name,
        nodes=job.cluster.nodes,
        folder=FOLDER,
        ranks=job.cluster.gpus_per_node,
        variables=variable_lines(variables),
        python=program_words(environment.python if environment and container else "python3"),
        plain=plain,
    )
    name, image = _name(job), container.image if container else IMAGE
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-files"},
        "data": {**files, "start.sh": start},
    }
    return {
        "trainjob.yaml": _documents(config, _train_job(job, name, image)),
        "jobset.yaml": _documents(config, _job_set(job, name, image)),
    }


def _train_job(job: Job, name: str, image: str) -> dict[str, Any]:
    # The launcher of LLaMA-Factory reads the names without PET_.
    given = [f"export {own}=$PET_{own}" for own in ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")]
    pod = {"volumes": _volumes(job, name), "containers": [{"name": "node", "volumeMounts": _mounts(job)}]}
    patch = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": {
                "image": image,
                "command": ["bash", "-c", "; ".join([*given, f"exec bash {FOLDER}/start.sh"])],
                "numNodes": job.cluster.nodes,
                "numProcPerNode": job.cluster.gpus_per_node,
                "resourcesPerNode": _resources(job),
            },
            "runtimePatches": [
                {"manager": "megaboard", "trainingRuntimeSpec": {"template": {"spec": patch}}},
            ],
        },
    }


def _job_set(job: Job, name: str, image: str) -> dict[str, Any]:
    rank = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    container = {
        "name": "node",
        "image": image,
        "command": ["bash", f"{FOLDER}/start.sh"],
        "env": [
            {"name": "NNODES", "value": str(job.cluster.nodes)},
            {"name": "NODE_RANK", "valueFrom": rank},
            {"name": "MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
            {"name": "MASTER_PORT", "value": str(job.cluster.port_range[0])},
        ],
        "resources": _resources(job),
        "volumeMounts": _mounts(job),
    }
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": _volumes(job, name)}
    indexed = {"parallelism": job.cluster.nodes, "completions": job.cluster.nodes, "completionMode": "Indexed"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": name},
            # A rank that ends alone would let the others wait until their time-out.
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {
                    "name": "node",
                    "replicas": 1,
                    "template": {"spec": {**indexed, "backoffLimit": 0, "template": {"spec": pod}}},
                }
            ],
        },
    }


def _volumes(job: Job, name: str) -> list[dict[str, Any]]:
    return [
        {"name": "files", "configMap": {"name": f"{name}-files"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}},
        # The default of 64 MiB is too small for data loaders and NCCL.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]


def _mounts(job: Job) -> list[dict[str, Any]]:
    """Return the mounts: the job's folders are folders of the same path in the claim."""
    folders = sorted({path for path in job_folders(job) if path.startswith("/") and path != job.cluster.run_root})
    inside = [{"name": "data", "mountPath": path, "subPath": path.lstrip("/")} for path in folders]
    return [{"name": "files", "mountPath": FOLDER}, {"name": "shm", "mountPath": "/dev/shm"}, *inside]  # noqa: S108


def _resources(job: Job) -> dict[str, Any]:
    return {} if job.cluster.gpu == "cpu" else {"limits": {"nvidia.com/gpu": str(job.cluster.gpus_per_node)}}


def _name(job: Job) -> str:
    """Return the job's name as a DNS label (RFC 1123)."""
    return re.sub(r"[^a-z0-9-]+", "-", job.name.lower())[:NAME_LENGTH].strip("-") or "job"


class _Dumper(yaml.SafeDumper):
    """Dumper that writes texts of several lines as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _documents(*documents: Mapping[str, Any]) -> str:
    head = (
        f"# Replace {CLAIM}, {IMAGE} and other fill-in names before kubectl apply. Megaboard does not watch this run.\n"
    )
    return head + "---\n".join(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096) for document in documents
    )
