"""LLaMA-Factory's dataset_info.json on one node: read, proposed, checked by LLaMA-Factory's parser, and changed."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from backend.cluster.inventory.software import ask_program, needed_environment
from backend.cluster.node import Node, NodeError
from backend.cluster.node_programs import DATASET_INFO
from backend.cluster.program_answers.data import (
    DatasetChecked,
    DatasetInfoAnswer,
    DatasetInfoRead,
    DatasetProposal,
    DatasetWritten,
    Failure,
)
from backend.job.job import Job

READ_S = 60.0
CHECK_S = 240.0
"""LLaMA-Factory imports for up to a minute from a slow disk; then the file is read for up to a minute."""
_ANSWER_BYTES = 16 << 20
_FOLDER_CODES = ("dataset_folder_missing", "dataset_info_broken", "dataset_info_not_written")

Entry = Mapping[str, Any]
A = TypeVar("A", bound=DatasetInfoAnswer)


def read_on(node: Node, job: Job, rank: int) -> DatasetInfoRead:
    """Return the entries of dataset_info.json on node `rank`. Raises NodeError."""
    answer = _ask(node, job, rank, DatasetInfoRead, "read", {}, READ_S)
    return _whole(node, answer, "entries", "folder", "is_there")


def propose_on(node: Node, job: Job, rank: int, path: str) -> DatasetProposal:
    """Return an entry for a file of the node, and the columns of its first rows. Raises NodeError."""
    return _whole(node, _ask(node, job, rank, DatasetProposal, "propose", {"path": path}, READ_S), "entry")


def check_on(node: Node, job: Job, rank: int, name: str, entry: Entry) -> DatasetChecked:
    """Return what LLaMA-Factory makes of an entry and of rows of its file. Nothing changes. Raises NodeError."""
    question = {"name": name, "entry": entry, "media_folder": job.extra.get("media_dir")}
    return _whole(node, _ask(node, job, rank, DatasetChecked, "check", question, CHECK_S), "rows", "faults")


def write_on(node: Node, job: Job, rank: int, name: str, entry: Entry | None, seen: Sequence[Entry | None]) -> bool:
    """Replace one entry that is one of those `seen`; None removes it. Return whether the file changed.

    Raises NodeError(dataset_entry_changed) if the entry is another one now.
    """
    question = {"name": name, "entry": entry, "seen": seen}
    answer = _whole(node, _ask(node, job, rank, DatasetWritten, "write", question, READ_S), "is_changed")
    return answer["is_changed"]


def _ask(
    node: Node, job: Job, rank: int, shape: type[A], action: str, question: Mapping[str, object], timeout_s: float
) -> A:
    if job.traits.environment != "llamafactory":
        raise NodeError("dataset_info_not_for_engine", node.name, field="engine", engine=job.engine)
    environment = needed_environment(job, rank, node)
    whole = {"folder": job.training.dataset_dir, **question}
    answer = ask_program(node, environment, shape, DATASET_INFO, action, whole, timeout_s, _ANSWER_BYTES)
    _refuse(node, answer)
    return answer


def _refuse(node: Node, answer: DatasetInfoAnswer) -> None:
    if "code" in answer:
        field = "training.dataset_dir" if answer["code"] in _FOLDER_CODES else "training.dataset"
        values = {**dict.fromkeys(Failure.__annotations__, "?"), **answer.get("values", {})}
        raise NodeError(answer["code"], node.name, field=field, **cast(dict[str, str], values))


def _whole(node: Node, answer: A, *keys: str) -> A:
    for key in keys:
        if key not in answer:
            raise NodeError("bad_answer", node.name, command=DATASET_INFO, exit=0, detail=f"{key} is missing")
    return answer
