"""Jobs from which the tests of the estimate start."""

from typing import Any

from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.mapping import with_values

SEED = Job(
    name="seed",
    cluster=Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8),
    model=Model(preset="qwen3-vl-8b"),
)
"""4 nodes x 8 H100, full fine-tuning at cutoff 4096, micro-batch 1, accumulation 8, nothing frozen."""

TP4 = {"parallel.tensor": 4}
TP8 = {"parallel.tensor": 8, "training.micro_batch_size": 2}
TP2_PP2_VPP2 = {"parallel.tensor": 2, "parallel.pipeline": 2, "parallel.virtual_pipeline": 2}
NO_IMAGES = {"training.images_per_sample": 0}


def job(*edits: dict[str, Any], **values: Any) -> Job:
    """Return the base job with edits. A double underscore in a keyword stands for a dot."""
    merged = {path: value for edit in edits for path, value in edit.items()}
    merged |= {name.replace("__", "."): value for name, value in values.items()}
    return with_values(SEED, merged)
