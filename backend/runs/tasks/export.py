"""Exports the saved model of a run as a Hugging Face model that can be served. It runs on a node, without a GPU.

LLaMA-Factory and ms-swift merge their adapters. mcore_adapter converts checkpoints of Megatron. A model that already
has the Hugging Face format stays in its folder.
"""

import json
import posixpath
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Node, NodeError
from backend.cluster.node_programs import node_program
from backend.engines import NodeCommand, Placement, Rendered, results_folder
from backend.engines.checkpoints import WEIGHTS
from backend.engines.keys import DTYPES
from backend.engines.swift_models import swift_names
from backend.job.job import Job
from backend.job.launch_rules import on_login_node
from backend.job.mapping import with_values
from backend.job.patterns import NODE_PATH, bad_format
from backend.job.problems import Problem, ProblemsError
from backend.runs.connections import Connections
from backend.runs.launch import launch
from backend.runs.launch.preflight import connect_nodes
from backend.runs.launch.resume import checkpoint_folder, find_checkpoints
from backend.runs.tasks.one_off_task import (
    NodeReader,
    log_excerpt,
    make_attempt,
    newest_line,
    read_exit,
    read_facts,
    run_task,
)

PROGRAM = "export_model.py"
LEFT = "export_left"
POLL_S = 1.0
STALL_S = 1800.0
"""Converters print little while they load and write. Each takes minutes for a model of 72B."""
FOLDER = "exported"
"""Folder in the job's output_dir."""

Kind = Literal["ready", "merge", "merge_swift", "megatron"]
ReportLine = Callable[[str], object]
"""Called with the newest output line of the converter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedModel:
    """The saved model of a run, and how to export it."""

    folder: str
    kind: Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """An exported model."""

    folder: str
    node: str
    """Node of the folder. All nodes have it when they share the disk."""
    kind: Kind
    """`ready`: the saved model already has the Hugging Face format."""
    serve: tuple[str, ...]
    """Alternative shell commands that serve the model on the node."""
    problems: tuple[Problem, ...] = ()
    """Warnings of the clean-up."""


def check_target(to: str | None) -> None:
    """Raise ProblemsError(bad_format) for a bad target folder. None: the default folder."""
    if to is not None and not (to.startswith("/") and re.fullmatch(NODE_PATH, to)):
        raise ProblemsError([bad_format("to", to, NODE_PATH)])


def export_run(
    job: Job, run: str, connections: Connections, progress: ReportLine, *, to: str | None, checkpoint: int | None
) -> Exported:
    """Export the model of the end of a run or of a step; without one, the newest complete checkpoint."""
    try:
        node = connections.get(job.cluster.connected_hosts[0])
        folder = results_folder(job, run)
        source = None if checkpoint else find_source(job, folder, node)
        if source is None:
            checkpoint = checkpoint or find_checkpoints(job, run, connect_nodes(job, connections).all_nodes()).newest
        if source is None and checkpoint is not None:
            folder = checkpoint_folder(folder, checkpoint)
            source = find_source(job, folder, node)
        if source is None:
            raise ProblemsError([Problem(code="nothing_saved", node=node.name, values={"folder": folder})])
        target = to or target_of(job, run, checkpoint)
        return export(job, run, source, target.rstrip("/"), node, progress)
    except NodeError as error:
        raise ProblemsError([error.problem]) from error


def find_source(job: Job, folder: str, node: Node) -> SavedModel | None:
    """Read which model a results folder holds; None when there is none. Raises NodeError."""

    def has(name: str) -> bool:
        return node.exists(posixpath.join(folder, name))

    is_swift = job.traits.environment == "swift"
    # Its Megatron writes the whole model beside a checkpoint of adapters (4.6.0 megatron/trainers/base.py).
    if is_swift and any(node.exists(posixpath.join(f"{folder}-merged", name)) for name in WEIGHTS):
        return SavedModel(folder=f"{folder}-merged", kind="ready")
    if has("adapter_config.json"):
        return SavedModel(folder=folder, kind="merge_swift" if is_swift else "merge")
    if any(has(name) for name in WEIGHTS):
        return SavedModel(folder=folder, kind="ready")
    if is_swift and has("latest_checkpointed_iteration.txt"):
        # Only its Megatron can read it, which needs Transformer Engine and GPUs.
        kind = "mcore_adapter" if job.training.method == "lora" else "mcore_model"
        raise NodeError("export_by_swift", node.name, field="engine", folder=folder, kind=kind)
    return SavedModel(folder=folder, kind="megatron") if has("mca_config.json") else None


def export(job: Job, run: str, source: SavedModel, target: str, node: Node, progress: ReportLine) -> Exported:
    """Convert the model on node 0 unless it is ready. The target is complete or does not exist.

    Raises ProblemsError.
    """
    if source.kind == "ready":
        return Exported(folder=source.folder, node=node.name, kind="ready", serve=serve_commands(job, source.folder))
    if node.exists(target):
        raise ProblemsError([Problem(code="export_exists", node=node.name, values={"folder": target})])
    job = on_login_node(job)
    alone = with_values(job, {"cluster.nodes": 1, "cluster.hosts": job.cluster.hosts[:1]})
    nodes = {0: node}
    attempt = _attempt(alone, run, source, target, read_facts(alone, nodes))
    _, failures = run_task(attempt, nodes, LEFT, lambda: _wait(attempt, node, progress))
    serve = serve_commands(job, target)
    return Exported(folder=target, node=node.name, kind=source.kind, serve=serve, problems=failures)


def serve_commands(job: Job, folder: str) -> tuple[str, ...]:
    """Return commands that serve the model over OpenAI's protocol: vLLM, and the engine's own with its template.

    vLLM: https://docs.vllm.ai/en/stable/cli/serve.html. LLaMA-Factory 0.9.5: src/llamafactory/api/app.py. ms-swift
    4.6.0: swift/arguments/deploy_args.py.
    """
    vllm = ["vllm", "serve", folder, "--served-model-name", job.name, "--host", "127.0.0.1", "--port", "8000"]
    environment = job.cluster.environments.get(job.traits.environment)
    python = environment.python if environment else "python"
    if job.traits.environment == "swift":
        names = swift_names(job)
        deploy = [python, "-m", "swift.cli.main", "deploy", "--model", folder, "--served_model_name", job.name]
        deploy += [word for key, name in names.items() for word in (f"--{key}", name)]
        return shlex.join(vllm), shlex.join([*deploy, "--host", "127.0.0.1", "--port", "8000"])
    template = ["--template", job.training.template] if job.training.template else []
    api = [python, "-m", "llamafactory.cli", "api", "--model_name_or_path", folder, *template]
    return shlex.join(vllm), f"API_HOST=127.0.0.1 API_PORT=8000 {shlex.join(api)}"


def target_of(job: Job, run: str, step: int | None) -> str:
    """Return the default target folder."""
    name = run if step is None else f"{run}-{step}"
    return posixpath.join(str(job.training.output_dir), FOLDER, name)


def _attempt(job: Job, run: str, source: SavedModel, target: str, facts: Mapping[int, NodeFacts]) -> launch.Attempt:
    placement = launch.make_placement(job, f"{run}-export", 1, facts, job.cluster.port_range[0])
    settings = {
        "kind": source.kind,
        "source": source.folder,
        "target": target,
        "model": job.model.path,
        "template": job.training.template,
        "names": swift_names(job),
        "dtype": DTYPES[job.training.precision],
    }
    files = {PROGRAM: node_program(PROGRAM).decode(), "export.json": json.dumps(settings, indent=1)}
    rendered = Rendered(files=files, commands=(_command(job, placement),))
    return make_attempt(job, f"{run}-export", placement, facts, rendered, STALL_S)


def _command(job: Job, placement: Placement) -> NodeCommand:
    node = placement.nodes[0]
    # Another run may use the GPUs. The files are on the disk, so the hub is not needed.
    variables = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **job.environment, "CUDA_VISIBLE_DEVICES": ""}
    argv = (node.python, f"{node.folder}/{PROGRAM}", node.folder)
    return NodeCommand(rank=0, argv=argv, environment=variables)


def _wait(attempt: launch.Attempt, node: Node, progress: ReportLine) -> None:
    """Wait until the converter has finished. Raises ProblemsError with the end of its log when it fails."""
    log = f"{attempt.records[0].folder}/out.log"
    reported = ""
    reader = NodeReader({0: node})
    while (ended := reader.read(lambda rank, node: read_exit(attempt, rank, node))[0]) is None:
        line = newest_line(node, log)
        if line and line != reported:
            reported = line
            progress(line)
        time.sleep(POLL_S)
    if ended.get("code") != 0:
        values = {"node": node.name, "lines": log_excerpt(node, log)}
        raise ProblemsError([Problem(code="export_failed", node=node.name, values=values)])
