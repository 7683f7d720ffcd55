"""A job that is ready to be launched, for tests that need one."""

from typing import Any

from backend.job.job import Job
from backend.job.mapping import parse_job


def make_job(*, nodes: int = 2, cluster: dict[str, Any] | None = None, **parts: Any) -> Job:
    """Return the job. `cluster` changes keys of the section of that name, and `parts` change keys of other sections."""
    hosts = [{"address": f"10.0.0.{rank + 1}", "user": "train"} for rank in range(nodes)]
    mapping: dict[str, Any] = {
        "version": 1,
        "name": "test",
        "engine": "llamafactory-ddp",
        "cluster": {
            "gpu": "h100-80g",
            "nodes": nodes,
            "gpus_per_node": 1,
            "hosts": hosts,
            "environments": {"llamafactory": {"python": "/opt/lf/bin/python"}},
            **(cluster or {}),
        },
        "model": {"preset": "qwen3-0.6b", "path": "/models/qwen"},
        "training": {"dataset": "a,b", "dataset_dir": "/data", "template": "qwen3", "output_dir": "/out"},
    }
    for name, values in parts.items():
        mapping[name] = {**mapping.get(name, {}), **values} if isinstance(values, dict) else values
    job, problems = parse_job(mapping)
    assert job is not None, problems
    assert problems == []
    return job
