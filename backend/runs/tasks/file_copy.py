"""Copies the model and the data that nodes lack from node 0 to them, when the user asks for it.

Node 0 sends them over the network of the ranks, to the port that the preflight has tested. A copy through the server
would be much slower. No node needs an SSH key of another. backend/node/copier/ says what holds for the files.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Node, NodeError, sftp_path
from backend.cluster.node_json import BadJson, parse_node_json
from backend.cluster.node_programs import COPIER, node_program
from backend.cluster.preflight.files import dataset_names
from backend.cluster.preflight.results import CheckResult
from backend.cluster.program_answers.transfers import Copied, Progress
from backend.engines import NodeCommand, Placement, Rendered
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.launch import launch
from backend.runs.launch.preflight import ConnectedNodes, PreflightReport
from backend.runs.tasks.one_off_task import (
    NodeReader,
    free_port,
    log_excerpt,
    make_attempt,
    read_answer,
    read_exit,
    run_task,
)

LEFT = "copy_left"
POLL_S = 1.0
STALL_S = 600.0
"""Node 0 exits after this time without a transferred byte. The hash of a large file takes minutes."""
INFO = "dataset_info.json"
CHUNK_BYTES = 1 << 20
INFO_BYTES = 16 << 20
"""Limit for the description of data sets. That of LLaMA-Factory itself has 20 KiB."""
MEDIA = ("images", "videos", "audios")
MODEL = ("model_missing",)
DATA = ("dataset_info_missing", "dataset_file_missing")

ReportBytes = Callable[[int, int], object]
"""Called with (received bytes, all bytes) over all nodes during the copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """Files that other nodes lack and node 0 has."""

    model: tuple[int, ...] = ()
    """Ranks without the model."""
    info: tuple[int, ...] = ()
    """Ranks without dataset_info.json."""
    data: tuple[int, ...] = ()
    """Ranks without a file of the data sets, and ranks without dataset_info.json."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks of the nodes that lack a file."""
        return tuple(sorted({*self.model, *self.data}))


def find_missing(checks: Iterable[CheckResult]) -> Missing | None:
    """Return the missing files that a copy from node 0 can provide; None when there are none."""
    results = list(checks)
    present = {result.name for result in results if result.rank == 0 and result.status == "ok"}
    ranks_by_code = {
        code: tuple(
            result.rank
            for result in results
            if result.name in present and result.problem and result.problem.code == code
        )
        for code in MODEL + DATA
    }
    info = ranks_by_code["dataset_info_missing"]
    data = tuple(sorted(info + ranks_by_code["dataset_file_missing"]))
    missing = Missing(model=ranks_by_code["model_missing"], info=info, data=data)
    return missing if missing.ranks else None


def copy(
    job: Job, connected: ConnectedNodes, report: PreflightReport, run: str, progress: ReportBytes
) -> tuple[Problem, ...]:
    """Copy the files that `report` names as missing; return warnings of the clean-up.

    Raises ProblemsError, which names the node that failed. The node keeps the part that it received, and the next
    copy continues there.
    """
    missing = find_missing(report.checks)
    if missing is None or connected.failures:
        raise ProblemsError(connected.problems or [Problem(code="nothing_to_copy")])
    nodes = {rank: connected.nodes[rank] for rank in (0, *missing.ranks)}
    try:
        attempt = _attempt(job, missing, nodes, report.facts, run)
    except NodeError as error:
        raise ProblemsError([error.problem]) from error
    _, clean_up_problems = run_task(attempt, nodes, LEFT, lambda: _wait(attempt, nodes, progress))
    return clean_up_problems


def roots_to_copy(job: Job, missing: Missing, node: Node) -> list[dict[str, Any]]:
    """Return folders and the names to copy from them, null for all. Raises NodeError and ProblemsError."""
    roots: list[dict[str, Any]] = []
    if missing.model:
        roots.append({"root": job.model.path, "names": None})
    if missing.data:
        folder = str(job.training.dataset_dir)
        entries = _entries(job, node, folder)
        files = [str(entry["file_name"]) for entry in entries if "file_name" in entry]
        inner_files = [name for name in files if not name.startswith("/") and ".." not in name.split("/")]
        # Rows name their images by paths that only LLaMA-Factory can resolve. So the whole folder is copied.
        with_media = any(
            isinstance(entry.get("columns"), dict) and key in entry["columns"] for entry in entries for key in MEDIA
        )
        info = [INFO] if missing.info else []
        roots.append({"root": folder, "names": None if with_media else [*info, *inner_files]})
    return roots


def _entries(job: Job, node: Node, folder: str) -> list[Mapping[str, Any]]:
    path, text = f"{sftp_path(folder)}/{INFO}", b""
    while len(text) <= INFO_BYTES and (chunk := node.read(path, len(text), CHUNK_BYTES)):
        text += chunk
    try:
        datasets = parse_node_json(text, max_bytes=INFO_BYTES)
    except BadJson:
        datasets = None
    if not isinstance(datasets, dict):  # edited since the check, which reads it too
        values = {"node": node.name, "path": folder}
        raise ProblemsError(
            [Problem(code="dataset_info_missing", field="training.dataset_dir", node=node.name, values=values)]
        )
    return [datasets[name] for name in dataset_names(job) if isinstance(datasets.get(name), dict)]


def _attempt(
    job: Job, missing: Missing, nodes: Mapping[int, Node], facts: Mapping[int, NodeFacts], run: str
) -> launch.Attempt:
    placement = launch.make_placement(job, run, 1, facts, free_port(job, nodes[0]))
    settings = {
        "address": placement.master_address,
        "port": placement.master_port,
        "token": secrets.token_hex(32),
        "roots": roots_to_copy(job, missing, nodes[0]),
    }
    files = {COPIER: node_program(COPIER).decode(), "copy.json": json.dumps(settings)}
    rendered = Rendered(files=files, commands=tuple(_commands(placement)))
    return make_attempt(job, run, placement, facts, rendered, STALL_S)


def _commands(placement: Placement) -> list[NodeCommand]:
    return [
        NodeCommand(
            rank=node.rank,
            argv=(node.python, f"{node.folder}/{COPIER}", node.folder, "take" if node.rank else "give"),
            environment={"PYTHONUNBUFFERED": "1"},
        )
        for node in placement.nodes
    ]


def _wait(attempt: launch.Attempt, nodes: Mapping[int, Node], progress: ReportBytes) -> None:
    """Wait until every receiver has finished. Raises ProblemsError for the first failure, or when the sender exited."""
    taking = {rank: node for rank, node in nodes.items() if rank}
    reader = NodeReader(nodes)
    while True:
        ended = reader.read(lambda rank, node: read_exit(attempt, rank, node))
        failed = [rank for rank in taking if (end := ended[rank]) is not None and end.get("code") != 0]
        if failed:
            raise ProblemsError([_failure(attempt, rank, nodes[rank]) for rank in failed])
        if all(ended[rank] for rank in taking):
            return
        if ended[0]:
            raise ProblemsError([_failure(attempt, 0, nodes[0])])
        answers = reader.read(lambda rank, node: _progress(attempt, rank, node), taking)
        reports = [report for report in answers.values() if report]
        progress(sum(report["done"] for report in reports), sum(report["total"] for report in reports))
        time.sleep(POLL_S)


def _progress(attempt: launch.Attempt, rank: int, node: Node) -> Progress | None:
    return read_answer(node, f"{attempt.records[rank].folder}/progress.json", Progress)


def _failure(attempt: launch.Attempt, rank: int, node: Node) -> Problem:
    """Return the error that the program reported, else the end of its log."""
    folder = attempt.records[rank].folder
    answer = read_answer(node, f"{folder}/result.json", Copied)
    if answer is None:
        values: dict[str, object] = {"node": node.name, "lines": log_excerpt(node, f"{folder}/out.log")}
        return Problem(code="copy_failed", node=node.name, values=values)
    details = {key: answer.get(key, "?") for key in Copied.__annotations__ if key != "code"}
    return Problem(code=answer["code"], node=node.name, values={**details, "node": node.name})
