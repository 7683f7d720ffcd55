"""Rows of a job's data sets as the model sees them, encoded on one node by the engine's own code."""

from backend.cluster.inventory.dataset_size import refuse_unreadable
from backend.cluster.inventory.software import ask_program, needed_environment
from backend.cluster.node import Node, NodeError
from backend.cluster.node_programs import DATA_PREVIEW
from backend.cluster.preflight.files import dataset_names
from backend.cluster.program_answers.data import DataPreview
from backend.engines import data_config
from backend.job.job import Job

PREVIEW_S = 300.0
"""LLaMA-Factory imports for up to a minute from a slow disk; then a data set takes up to two minutes."""
_ANSWER_BYTES = 16 << 20


def data_preview_on(node: Node, job: Job, rank: int, seed: int) -> DataPreview:
    """Return examples, faults and lengths of the job's data sets on node `rank`. `seed` selects the random rows.

    Raises NodeError: no_environment, or why a data set cannot be read (dataset_size.data_size_on).
    """
    environment = needed_environment(job, rank, node)
    question = {
        "engine": job.traits.environment,
        "config": data_config(job),
        "megatron": job.traits.is_megatron,
        "stage": job.training.stage,
        "folder": job.training.dataset_dir,
        "names": dataset_names(job),
        "images_root": job.environment.get("ROOT_IMAGE_DIR"),
        "seed": seed,
    }
    answer = ask_program(node, environment, DataPreview, DATA_PREVIEW, "preview", question, PREVIEW_S, _ANSWER_BYTES)
    refuse_unreadable(node, answer)
    if "examples" not in answer or "datasets" not in answer:
        raise NodeError("bad_answer", node.name, command=DATA_PREVIEW, exit=0, detail="examples is missing")
    return answer
