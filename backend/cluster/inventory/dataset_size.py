"""Number and length of the samples in a job's data sets, read on one node by the engine's Python."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from backend.cluster.inventory.software import ask_program, needed_environment
from backend.cluster.node import Node, NodeError
from backend.cluster.node_programs import SAMPLES
from backend.cluster.preflight.files import dataset_names
from backend.cluster.program_answers.data import Counted, DataPreview, Failure
from backend.estimate.plan import patches_per_image
from backend.job.job import Job
from backend.job.mixing import mixing_of
from backend.job.presets import known_model
from backend.job.unestimated import UnestimatedModel

COUNT_S = 540.0
"""Two busy cores read a JSON list at 70 MB/s, and JSON lines at 340 MB/s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSize:
    """Size of a job's training data."""

    samples: int
    """Without the samples for evaluation."""
    rows: Mapping[str, int]
    """Number of samples that the engine takes from each data set."""
    tokens: int | None
    """Mean length of a sample by the model's tokenizer, before it is cut. Images have the job's maximum of pixels."""
    unmeasured: str
    """The node's reason why `tokens` is None, or else an empty text."""


def data_size_on(node: Node, job: Job, rank: int) -> DataSize:
    """Return the size of the job's data sets on node `rank`, as the job's engine would read them.

    Raises NodeError: no_environment, or why they cannot be counted (dataset_info_missing, dataset_unknown,
    dataset_not_local, dataset_file_missing, dataset_kind, dataset_unreadable, dataset_needs_module).
    """
    environment, training, extra = needed_environment(job, rank, node), job.training, job.extra
    mixing = mixing_of(job)
    is_llamafactory = job.traits.environment == "llamafactory"
    question = {
        "folder": training.dataset_dir,
        "names": dataset_names(job),
        # LLaMA-Factory reads names from dataset_info.json. For ms-swift a name is a file.
        "described": is_llamafactory,
        "model": job.model.path,
        "chat": training.stage != "pt",
        "max_samples": _number(extra.get("max_samples")),
        "mix_strategy": mixing.strategy,
        "shares": list(mixing.shares) if mixing.shares else None,
        "val_size": _number(job.eval_size) or 0,
    }
    answer = ask_program(node, environment, Counted, SAMPLES, "count", question, COUNT_S)
    refuse_unreadable(node, answer)
    if "samples" not in answer or "rows" not in answer:
        raise NodeError("bad_answer", node.name, command=SAMPLES, exit=0, detail="samples is missing")
    size = DataSize(
        samples=answer["samples"], rows=answer["rows"], tokens=None, unmeasured=answer.get("unmeasured", "")
    )
    if answer.get("tokens") is None:
        return size
    images = _image_tokens(job)
    if images is None:
        return replace(size, unmeasured="the number of tokens of an image is not known")
    return replace(size, tokens=max(1, answer["tokens"] + images))


def refuse_unreadable(node: Node, answer: Counted | DataPreview) -> None:
    """Raise NodeError if the node answers that a data set cannot be read."""
    if "code" in answer:
        field = "training.dataset_dir" if answer["code"] == "dataset_info_missing" else "training.dataset"
        values = {**dict.fromkeys(Failure.__annotations__, "?"), **answer.get("values", {})}
        raise NodeError(answer["code"], node.name, field=field, **cast(dict[str, str], values))


def _image_tokens(job: Job) -> int | None:
    """Return the tokens of a sample's images, as the estimate counts them; None if the model has no estimate."""
    model = known_model(job.model)
    if isinstance(model, UnestimatedModel):
        return None if model.names_vision and job.training.images_per_sample else 0
    vision = model.vision
    if vision is None:
        return 0
    return job.training.images_per_sample * vision.image_tokens(patches_per_image(job, vision))


def _number(value: Any) -> Any:
    """Return the number, or None for a value that the engine refuses itself."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
