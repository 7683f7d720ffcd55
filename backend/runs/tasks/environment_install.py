"""Makes the Python environment of the job's engine on its nodes, from a set of packages with locked versions.

Every node installs at the same time, into `<run_root>/environments/<set>-py<version>-<digest>`. Nodes that see one disk
take turns at a lock there, and the later ones find the environment ready. An interrupted installation goes on with the
next call, with what uv or pip has downloaded. The program on the node is backend/node/installer.
"""

import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NotRequired, TypedDict

from backend.cluster.inventory.software import NodeFacts, one_argument, outside, python_field, read_software
from backend.cluster.node import Node, NodeError, ask
from backend.cluster.node_group import ends_of_all
from backend.cluster.node_programs import INSTALLER, node_program
from backend.cluster.program_answers.values import Bytes, Folder, Line, ToolOutput, Word
from backend.cluster.typed_json import Count, answer_of
from backend.engines import NodeCommand, Rendered
from backend.job.cluster import Environment
from backend.job.environment_sets import EnvironmentSet, choose_set, environment_sets
from backend.job.job import Job
from backend.job.job_secrets import check_containers
from backend.job.launch_rules import check_machines
from backend.job.mapping import with_values
from backend.job.problems import Problem, ProblemsError
from backend.runs.collect.node_records import Exit
from backend.runs.launch import launch
from backend.runs.launch.preflight import ConnectedNodes
from backend.runs.redact import redact
from backend.runs.tasks.one_off_task import (
    CALL_S,
    NodeReader,
    all_read,
    log_excerpt,
    make_attempt,
    newest_line,
    read_answer,
    read_exit,
    run_task,
)

LEFT = "install_left"
FOLDER = "environments"
POLL_S = 1.0
TOOLS_S = 90.0
FACTS_S = 60.0
SEND_S = 600.0
STALL_S = 3600.0
"""The supervisor ends an installation after this time without output. uv prints nothing while it downloads."""
GIB = 1 << 30
RESERVE_GIB = 1
"""Space that stays free (RESERVE_SPACE of the node's program)."""

_log = logging.getLogger(__name__)


class NodeTools(TypedDict):
    """Answer of `install_environment.py tools`."""

    uv: Word | None
    pythons: dict[str, Line]
    own_python: Word
    machine: Word
    libc: Word
    free: Bytes
    root: Folder
    states: dict[str, Word]
    driver_cuda: NotRequired[Word | None]


class StepProgress(TypedDict):
    """progress.json of an installation."""

    step: Word
    done: Count
    total: Count


class Failed(TypedDict):
    """result.json of a failed installation."""

    code: Word
    path: NotRequired[Line]
    needed_gib: NotRequired[float]
    free_gib: NotRequired[float]
    versions: NotRequired[Word]
    found: NotRequired[Word]
    imports: NotRequired[Line]
    lines: NotRequired[ToolOutput]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """The environment that all nodes have."""

    name: str
    """The set."""
    python: str
    """The interpreter, as the job file names it on all nodes."""
    edit: Mapping[str, str]
    """Path in the job file -> the interpreter."""
    problems: tuple[Problem, ...] = ()
    """Warnings of the clean-up."""


ReportInstall = Callable[[int, int, Mapping[str, str]], object]
"""Called with (installed packages, all packages, node -> newest line of its log) over all nodes."""


def install(
    job: Job,
    connected: ConnectedNodes,
    run: str,
    progress: ReportInstall,
    sets: Mapping[str, EnvironmentSet] | None = None,
) -> Installed:
    """Make the environment on all nodes and import the engine there.

    Raises ProblemsError, which names the nodes that failed.
    """
    nodes = connected.all_nodes()
    sets = environment_sets() if sets is None else sets
    plain_job = with_node_python(job)
    engine = job.traits.environment
    facts = all_read(ends_of_all(nodes, lambda rank, node: _facts(plain_job, rank, node), FACTS_S))
    first = all_read(ends_of_all(nodes, lambda rank, node: _read_tools(plain_job, node, None), TOOLS_S))
    chosen = choose_set(job, [tools.get("driver_cuda") for tools in first.values()], sets)
    node_tools = all_read(ends_of_all(nodes, lambda rank, node: _read_tools(plain_job, node, chosen), TOOLS_S))
    python = choose_python(job, chosen, node_tools, nodes)
    check_nodes_for(chosen, python, node_tools, nodes)
    sent = _send_uv(job, node_tools, nodes)
    placement = launch.make_placement(plain_job, run, 1, facts, job.cluster.port_range[0])
    request = _request(job, chosen, python, sent)
    files = {INSTALLER: node_program(INSTALLER).decode(), "install.json": json.dumps(request)}
    files |= {f"{number}.txt": step.text() for number, step in enumerate(chosen.steps)}
    commands = tuple(
        NodeCommand(
            rank=node.rank,
            argv=("/usr/bin/env", "python3", f"{node.folder}/{INSTALLER}", "install", node.folder),
            environment={"PYTHONUNBUFFERED": "1"},
        )
        for node in placement.nodes
    )
    attempt = make_attempt(plain_job, run, placement, facts, Rendered(files=files, commands=commands), STALL_S)
    _, warnings = run_task(attempt, nodes, LEFT, lambda: _wait(attempt, nodes, progress))
    path = f"{job.cluster.run_root}/{FOLDER}/{chosen.folder(python)}/bin/python"
    fields = {python_field(job, rank) for rank in nodes} | {f"cluster.environments.{engine}.python"}
    return Installed(name=chosen.name, python=path, edit=dict.fromkeys(sorted(fields), path), problems=warnings)


def with_python(job: Job, installed: Installed) -> Job:
    """Return the job with the installed interpreter on all nodes."""
    return _with_environment(job, lambda old: replace(old, python=installed.python) if old else
                             Environment(python=installed.python))  # fmt: skip


def check_installation(job: Job) -> list[Problem]:
    """Return the missing, contradictory or secret values for an installation on the job's nodes."""
    return [*check_containers(job.cluster), *check_machines(with_node_python(job))]


def with_node_python(job: Job) -> Job:
    """Return the job with the nodes' own python3, which runs our programs before there is an environment."""
    return _with_environment(job, lambda old: outside(replace(old, python="python3")) if old else
                             Environment(python="python3"))  # fmt: skip


def _with_environment(job: Job, change: Callable[[Environment | None], Environment]) -> Job:
    name = job.traits.environment

    def changed(environments: Mapping[str, Environment], is_own: bool) -> dict[str, Environment]:
        old = environments.get(name)
        return dict(environments) if old is None and is_own else {**environments, name: change(old)}

    hosts = tuple(replace(host, environments=changed(host.environments, True)) for host in job.cluster.hosts)
    values = {"cluster.environments": changed(job.cluster.environments, False), "cluster.hosts": hosts}
    return with_values(job, values)


def choose_python(
    job: Job, chosen: EnvironmentSet, node_tools: Mapping[int, NodeTools], nodes: Mapping[int, Node]
) -> str:
    """Return the first version of Python of the set that all nodes have. Raises ProblemsError: install_no_python."""
    for version in chosen.pythons:
        if all(version in tools["pythons"] or tools["states"].get(version) == "ready" for tools in node_tools.values()):
            return version
    if job.cluster.install.python_download:
        return chosen.pythons[0]
    versions = ", ".join(chosen.pythons)
    raise ProblemsError(
        [
            Problem(
                code="install_no_python",
                field="cluster.install.python_download",
                node=nodes[rank].name,
                values={"node": nodes[rank].name, "versions": versions, "found": tools["own_python"]},
            )
            for rank, tools in node_tools.items()
            if not set(chosen.pythons) & tools["pythons"].keys()
        ]
        or [Problem(code="install_unequal_python", field="cluster.hosts", values={"versions": versions})]
    )


def check_nodes_for(
    chosen: EnvironmentSet, python: str, node_tools: Mapping[int, NodeTools], nodes: Mapping[int, Node]
) -> None:
    """Raise ProblemsError for the nodes without space, and for those where the folder is somebody else's."""
    problems = []
    for rank, tools in node_tools.items():
        state, name = tools["states"].get(python), nodes[rank].name
        path = f"{tools['root']}/{chosen.folder(python)}"
        if state == "foreign":
            values: dict[str, object] = {"node": name, "path": path}
            problems.append(Problem(code="install_foreign_folder", field="cluster.run_root", node=name, values=values))
        elif state == "none" and tools["free"] < (chosen.disk_gib + RESERVE_GIB) * GIB:
            gib = {"needed_gib": chosen.disk_gib + RESERVE_GIB, "free_gib": round(tools["free"] / GIB, 1)}
            values = {"node": name, "path": path, **gib}
            problems.append(Problem(code="install_no_room", field="cluster.run_root", node=name, values=values))
    if problems:
        raise ProblemsError(problems)


def _facts(job: Job, rank: int, node: Node) -> NodeFacts:
    environment = job.cluster.environments[job.traits.environment]
    return read_software(node, environment, python_field=python_field(job, rank))


def _read_tools(job: Job, node: Node, chosen: EnvironmentSet | None) -> NodeTools:
    question = {
        "root": f"{job.cluster.run_root}/{FOLDER}",
        "uv_comes": own_uv() is not None,
        "digest": chosen.digest if chosen else "",
        "pythons": list(chosen.pythons) if chosen else [],
        "folders": {version: chosen.folder(version) for version in chosen.pythons} if chosen else {},
    }
    argv = ["python3", "-", "tools", one_argument(question)]
    return answer_of(node.name, NodeTools, ask(node, argv, timeout_s=TOOLS_S, stdin=node_program(INSTALLER)))


def _send_uv(job: Job, node_tools: Mapping[int, NodeTools], nodes: Mapping[int, Node]) -> str | None:
    """Send the server's uv to the nodes without one; return its path there. Without one, pip of the node installs.

    The node tries whether it starts: another processor or libc refuses it, and then pip installs.
    """
    lacking = {rank: nodes[rank] for rank, tools in node_tools.items() if tools["uv"] is None}
    uv = own_uv()
    if not lacking or uv is None:
        return None
    data = uv.read_bytes()

    def send(rank: int, node: Node) -> None:
        folder = f"{node_tools[rank]['root']}/.tools"
        if not node.exists(f"{folder}/uv-{len(data)}"):
            node.make_folder(folder)
            node.write(f"{folder}/uv-{len(data)}", data)
        node.run(["chmod", "700", f"{folder}/uv-{len(data)}"], timeout_s=CALL_S)

    all_read(ends_of_all(lacking, send, SEND_S))
    return f"{job.cluster.run_root}/{FOLDER}/.tools/uv-{len(data)}"


def own_uv() -> Path | None:
    """Return the uv of this server: that of its own environment, or on PATH."""
    beside = Path(sys.executable).parent / "uv"
    path = str(beside) if beside.exists() else shutil.which("uv")
    return Path(path) if path else None


def _request(job: Job, chosen: EnvironmentSet, python: str, uv: str | None) -> dict[str, object]:
    fields = job.cluster.install
    return {
        "name": chosen.name,
        "digest": chosen.digest,
        "root": f"{job.cluster.run_root}/{FOLDER}",
        "folder": chosen.folder(python),
        "python": python,
        "python_download": fields.python_download,
        "needed_bytes": int(chosen.disk_gib * GIB),
        "steps": [
            {"lock": f"{number}.txt", "hashes": step.hashes, "from_source": step.from_source, "index": step.index}
            for number, step in enumerate(chosen.steps)
        ],
        "remove": list(chosen.remove),
        "imports": chosen.imports,
        "variables": dict(chosen.variables),
        "index_url": fields.index_url,
        "find_links": fields.find_links,
        "offline": fields.offline,
        "uv": uv,
    }


def _wait(attempt: launch.Attempt, nodes: Mapping[int, Node], progress: ReportInstall) -> None:
    """Wait until every node has ended. Raises ProblemsError for all nodes that failed."""
    reader = NodeReader(nodes)
    while True:
        states = reader.read(lambda rank, node: _state(attempt, rank, node))
        known = {rank: state for rank, state in states.items() if state}
        steps = [step for _, step, _ in known.values() if step]
        named = {nodes[rank].name: line for rank, (_, _, line) in known.items() if line}
        progress(sum(step["done"] for step in steps), sum(step["total"] for step in steps), named)
        ended = {rank: end for rank, (end, _, _) in known.items() if end}
        if len(ended) == len(nodes):
            break
        time.sleep(POLL_S)
    failed = [rank for rank, end in ended.items() if end.get("code") != 0]
    if failed:
        raise ProblemsError([_failure(attempt, rank, nodes[rank]) for rank in failed])


def _state(attempt: launch.Attempt, rank: int, node: Node) -> tuple[Exit | None, StepProgress | None, str]:
    """Return the exit record of a node, its progress, and the newest line of its log."""
    folder = attempt.records[rank].folder
    end = read_exit(attempt, rank, node)
    return end, read_answer(node, f"{folder}/progress.json", StepProgress), newest_line(node, f"{folder}/out.log")


def _failure(attempt: launch.Attempt, rank: int, node: Node) -> Problem:
    """Return why a node failed, as its program reported it; else the end of its log."""
    folder = attempt.records[rank].folder
    try:
        answer = read_answer(node, f"{folder}/result.json", Failed)
    except NodeError as error:
        _log.warning("the result of the installation: %s", error)
        answer = None
    lines = redact(log_excerpt(node, f"{folder}/out.log"))
    values: dict[str, object] = {"node": node.name, "lines": lines, "path": folder, **(answer or {})}
    code = str(values.pop("code", "install_command_failed"))
    known = code if code in FIELDS else "install_command_failed"
    return Problem(code=known, field=FIELDS[known], node=node.name, values=values)


FIELDS: Mapping[str, str] = {
    "install_no_room": "cluster.run_root",
    "install_disk_full": "cluster.run_root",
    "install_foreign_folder": "cluster.run_root",
    "install_no_python": "cluster.install.python_download",
    "install_no_pip": "cluster.install.python_download",
    "install_no_index": "cluster.install.index_url",
    "install_no_package": "cluster.install.find_links",
    "install_wrong_hash": "cluster.install.find_links",
    "install_import_failed": "cluster.install.environment",
    "install_command_failed": "cluster.install.environment",
}
"""Code of a failure on a node -> the field that mends it."""
