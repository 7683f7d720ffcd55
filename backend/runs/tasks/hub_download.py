"""Downloads the model or a data set of a job from a hub to node 0. A copy (file_copy.py) brings it to the other nodes.

The program is backend/node/training/download.py. The secrets of the ranks, such as HF_TOKEN, go with it.
"""

import json
import posixpath
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from backend.cluster.node import Node
from backend.cluster.node_programs import node_program
from backend.cluster.program_answers.transfers import Downloaded, Progress
from backend.engines import NodeCommand, Rendered
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.patterns import HUB, bad_format
from backend.job.presets import models
from backend.job.problems import Problem, ProblemsError
from backend.runs.launch import launch
from backend.runs.launch.preflight import ConnectedNodes
from backend.runs.rank_secrets import SECRETS
from backend.runs.tasks.one_off_task import (
    NodeReader,
    log_excerpt,
    make_attempt,
    read_answer,
    read_exit,
    read_facts,
    run_task,
)

PROGRAM = "download.py"
LEFT = "download_left"
POLL_S = 1.0
STALL_S = 900.0
"""The supervisor ends a download that receives nothing for this time. The hash of a large file takes a minute."""

ReportBytes = Callable[[int, int], object]
"""Called with (bytes on the disk, all bytes) during the download."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """A repository on a hub, and the folder on the nodes that it becomes."""

    id: str
    kind: Literal["model", "dataset"]
    target: str
    revision: str | None = None
    endpoint: str | None = None
    hub: Literal["huggingface", "modelscope"] = "huggingface"


def model_repository(job: Job) -> Repository | None:
    """Return the repository of the job's model; None if nothing names one, or without a folder."""
    preset = models().get(job.model.preset or "")
    name = job.model.hub or (preset.hub if preset else None)
    if name is None or job.model.path is None:
        return None
    return Repository(
        id=name, kind="model", target=job.model.path, endpoint=job.model.hub_endpoint, hub=job.model.hub_kind
    )


def dataset_repository(job: Job, name: str) -> Repository:
    """Return a data set's repository. Its folder has the repository's name, in dataset_dir. Raises ProblemsError."""
    if not re.fullmatch(HUB, name):
        raise ProblemsError([bad_format("dataset", name, HUB)])
    if job.training.dataset_dir is None:
        raise ProblemsError([Problem(code="needed_for_launch", field="training.dataset_dir")])
    target = posixpath.join(job.training.dataset_dir, name.partition("/")[2])
    return Repository(id=name, kind="dataset", target=target, endpoint=job.model.hub_endpoint, hub=job.model.hub_kind)


def download(
    job: Job, connected: ConnectedNodes, repository: Repository | None, run: str, progress: ReportBytes
) -> tuple[Problem, ...]:
    """Download a repository to node 0, and return warnings of the clean-up.

    Raises ProblemsError, which says why it failed. Complete files are kept, and the next download continues there.
    """
    if repository is None:
        raise ProblemsError([Problem(code="no_repository", field="model.hub")])
    if 0 in connected.failures:
        raise ProblemsError([connected.failures[0].problem])
    nodes = {0: connected.nodes[0]}
    alone = with_values(job, {"cluster.nodes": 1, "cluster.hosts": job.cluster.hosts[:1]})
    attempt = _attempt(alone, repository, nodes, run)
    _, clean_up_problems = run_task(attempt, nodes, LEFT, lambda: _wait(attempt, repository, nodes[0], progress))
    return clean_up_problems


def _attempt(job: Job, repository: Repository, nodes: Mapping[int, Node], run: str) -> launch.Attempt:
    facts = read_facts(job, nodes)
    placement = launch.make_placement(job, run, 1, facts, job.cluster.port_range[0])
    (node,) = placement.nodes
    request = asdict(repository)
    # The variables of the job may name a proxy. Its ranks may be offline; the download is not.
    variables = {**job.environment, "HF_HUB_OFFLINE": "0", "PYTHONUNBUFFERED": "1"}
    command = NodeCommand(rank=0, argv=(node.python, f"{node.folder}/{PROGRAM}", node.folder), environment=variables)
    files = {PROGRAM: node_program(PROGRAM).decode(), "download.json": json.dumps(request)}
    rendered = Rendered(files=files, commands=(command,))
    return replace(make_attempt(job, run, placement, facts, rendered, STALL_S), secrets=SECRETS.taken())


def _wait(attempt: launch.Attempt, repository: Repository, node: Node, progress: ReportBytes) -> None:
    """Wait for the end of the download. Raises ProblemsError with its reason if it failed."""
    folder = attempt.records[0].folder
    reader = NodeReader({0: node})
    while (ended := reader.read(lambda rank, node: read_exit(attempt, rank, node))[0]) is None:
        if report := reader.read(lambda _, node: read_answer(node, f"{folder}/progress.json", Progress))[0]:
            progress(report["done"], report["total"])
        time.sleep(POLL_S)
    if ended.get("code") == 0:
        return
    answer = read_answer(node, f"{folder}/result.json", Downloaded) or {
        "code": "download_failed", "id": repository.id, "detail": log_excerpt(node, f"{folder}/out.log")
    }  # fmt: skip
    details = {key: answer.get(key, "?") for key in Downloaded.__annotations__ if key != "code"}
    values = {**details, "node": node.name, "case": repository.hub}
    field = _field_of(answer["code"], repository)
    raise ProblemsError([Problem(code=answer["code"], field=field, node=node.name, values=values)])


def _field_of(code: str, repository: Repository) -> str:
    """Return the field that mends a failed download. A data set's id is no field of the job."""
    is_model = repository.kind == "model"
    if code in ("download_target_taken", "download_no_space", "download_not_writable"):
        return "model.path" if is_model else "training.dataset_dir"
    if code == "download_no_modelscope":
        return "model.hub_kind"
    return "model.hub" if is_model else "dataset"
