"""Jobs and placements for the engine tests."""

from typing import Any

from backend.engines import NodePlacement, Placement
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values

RUN = "20261121-120000-tiny-abcd"


def job(preset: str = "qwen3-8b", *, gpu: str = "h100-80g", nodes: int = 2, ranks: int = 4, **values: Any) -> Job:
    """Return a job that is ready to launch; `values` are job paths with __ for the dot."""
    mapping = {
        "name": "tiny",
        "cluster": {
            "gpu": gpu,
            "nodes": nodes,
            "gpus_per_node": ranks,
            "environments": {"llamafactory": {"python": "/opt/lf/bin/python"}},
            "hosts": [{"address": f"10.0.0.{rank + 1}"} for rank in range(nodes)],
        },
        "model": {"preset": preset, "path": "/models/it"},
        "training": {"dataset": "my_data", "dataset_dir": "/data", "template": "qwen3", "output_dir": "/runs"},
    }
    result, problems = parse_job(mapping)
    assert result is not None, problems
    return with_values(result, {path.replace("__", "."): value for path, value in values.items()})


def ddp(preset: str = "qwen3-0.6b", **values: Any) -> Job:
    """Return a job of LLaMA-Factory's Hugging Face trainer."""
    return job(preset, engine="llamafactory-ddp", **values)


def sharded(engine: str, preset: str = "qwen3-0.6b", **values: Any) -> Job:
    """Return a job of LLaMA-Factory's Hugging Face trainer with sharding; `engine` lacks its first word."""
    return job(preset, engine=f"llamafactory-{engine}", **values)


def place(launched: Job, *, interface: str | None = "eth1") -> Placement:
    """Return the job's nodes as a launch finds them."""
    return Placement(
        run_id=RUN,
        attempt=1,
        master_address=launched.cluster.hosts[0].dialled_address,
        master_port=29511,
        nodes=tuple(
            NodePlacement(
                rank=rank,
                folder=f"/home/me/.megaboard/{RUN}/1/node{rank}",
                python="/opt/lf/bin/python",
                interface=interface,
                address=host.address,
            )
            for rank, host in enumerate(launched.cluster.hosts)
        ),
    )
