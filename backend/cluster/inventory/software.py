"""What a node is and has: read once at connect, by the engine's own Python, in one command."""

import json
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from backend.cluster import program_answers
from backend.cluster.node import ANSWER_BYTES, Node, NodeError, ask, tail
from backend.cluster.node_group import ends_of_all
from backend.cluster.node_programs import node_program
from backend.cluster.typed_json import answer_of
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.launch_rules import environment_of

T = TypeVar("T")

PROBE_S = 30.0
INSPECT = "software.py"

# Import name -> distribution.
_COMMON = {"torch": "torch", "transformers": "transformers"}
_ENGINE = {"llamafactory": {"llamafactory": "llamafactory"}, "swift": {"swift": "ms-swift"}}
_MEGATRON = {"llamafactory": {"mcore_adapter": "mcore-adapter"}, "swift": {}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where an installed package comes from; a text is empty where it does not apply."""

    version: str
    url: str = ""
    """Of what pip was given in place of a name."""
    commit: str = ""
    """Of a git repository."""
    subdirectory: str = ""
    folder: str = ""
    """On the node, of a checkout that was installed with `pip install -e`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """A node's software; its machine is in its Survey."""

    home: str
    """The log-in user's home folder: what `~` means there."""
    hostname: str
    python: str
    """Version of the engine's interpreter."""
    modules: Mapping[str, str | None] = field(default_factory=dict)
    """Version by import name, with the commit of a git checkout; None where it cannot be imported."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """By import name; of what is installed, though it may not be importable."""
    cuda: str | None = None
    """That torch was built with; empty for a torch without, None where that is not known."""
    nccl: str | None = None
    """Version of the package that torch loads; None where it is none of its own."""
    interface: str | None = None
    """Network interface towards the master; None where there is no route."""
    machine: str = ""
    """The kernel's boot id, equal for nodes that are one machine; empty where there is none."""
    clock_offset_s: float = 0.0
    """The node's clock minus ours."""
    clock_error_s: float = 0.0
    """How far that may be off: half the time that the question took."""


def needed_modules(job: Job) -> dict[str, str]:
    """What the job's engine imports: import name -> distribution."""
    traits = job.traits
    megatron = {"megatron": "megatron-core", **_MEGATRON[traits.environment]} if traits.is_megatron else {}
    deepspeed = {"deepspeed": "deepspeed"} if traits.zero_stage else {}
    return {**_COMMON, **_ENGINE[traits.environment], **megatron, **deepspeed}


def probe(
    node: Node,
    environment: Environment,
    *,
    master: str | None = None,
    modules: Mapping[str, str] | None = None,
    python_field: str = "cluster.environments",
) -> NodeFacts:
    """Read a node's facts. `master` is the address that all nodes dial.

    Raises NodeError: no_python where the environment's interpreter cannot be run, bad_python where it answers no sense,
    shell_leaves where the shell does not come to it.
    """
    asked = time.time()
    try:
        answer = inspect(
            node, environment, program_answers.Facts, "facts", {"master": master, "modules": dict(modules or {})}
        )
    except NodeError as error:
        if error.code != "bad_answer":
            raise
        code = "no_python" if error.values["exit"] in (126, 127) else "bad_python"
        if code == "bad_python" and (nothing := node.run(["true"], timeout_s=PROBE_S)).code:
            raise NodeError("shell_leaves", node.name, exit=nothing.code, detail=tail(nothing.err)) from error
        detail = error.values["detail"]
        raise NodeError(code, node.name, field=python_field, python=environment.python, detail=detail) from error
    return _read(answer, modules or {}, asked, time.time())


def probe_all(job: Job, nodes: Mapping[int, Node]) -> dict[int, NodeFacts | NodeError]:
    """The facts of every node by rank, or why there are none."""
    return ends_of_all(nodes, lambda rank, node: _probe_for(job, rank, node), PROBE_S + 10)


def probe_one(job: Job, rank: int, node: Node) -> NodeFacts | NodeError:
    """The facts of one node of a job, or why there are none."""
    try:
        return _probe_for(job, rank, node)
    except NodeError as error:
        error.rank = rank
        return error


def _probe_for(job: Job, rank: int, node: Node) -> NodeFacts:
    environment = needed_environment(job, rank, node)
    master = job.cluster.hosts[0].dialled_address
    modules = needed_modules(job)
    return probe(node, environment, master=master, modules=modules, python_field=python_field(job, rank))


def needed_environment(job: Job, rank: int, node: Node) -> Environment:
    """The environment of the job's engine on a node. Raises NodeError(no_environment)."""
    environment = environment_of(job, rank)
    if environment is None:
        raise NodeError("no_environment", node.name, field=python_field(job, rank), name=job.traits.environment)
    return environment


def python_field(job: Job, rank: int) -> str:
    """Where the job file names the interpreter of node `rank`."""
    name = job.traits.environment
    own = name in job.cluster.hosts[rank].environments
    return f"cluster.hosts[{rank}].environments.{name}.python" if own else f"cluster.environments.{name}.python"


def inspect(
    node: Node,
    environment: Environment,
    shape: type[T],
    action: str,
    wanted: Mapping[str, object],
    timeout_s: float = PROBE_S,
) -> T:
    """Ask software.py, run by the environment's Python."""
    return ask_program(node, environment, shape, INSPECT, action, wanted, timeout_s)


def ask_program(
    node: Node,
    environment: Environment,
    shape: type[T],
    program: str,
    action: str,
    wanted: Mapping[str, object],
    timeout_s: float,
    max_bytes: int = ANSWER_BYTES,
) -> T:
    """Run one of our programs on a node with the environment's Python; `shape`: from program_answers.py. NodeError."""
    # Even in quotes csh looks for `!`, and fish takes two backslashes for one.
    asked = json.dumps(wanted).replace("\\\\", "\\u005c").replace("!", "\\u0021")
    argv = python_command(environment, ["-", action, asked])
    answer = ask(node, argv, timeout_s=timeout_s, stdin=node_program(program), max_bytes=max_bytes)
    return answer_of(node.name, shape, answer)


def python_command(environment: Environment, arguments: Sequence[str]) -> list[str]:
    """The environment's Python with these arguments, after its `setup`; `~/` is resolved on the node."""
    command = [environment.python, *arguments]
    if environment.python.startswith("~/"):
        command = ["sh", "-c", 'exec "$HOME/$0" "$@"', environment.python[2:], *arguments]
    if environment.setup:
        command = ["bash", "-c", '. "${0/#\\~/$HOME}" >&2 && exec "$@"', environment.setup, *command]
    return command


def expand(path: str, home: str) -> str:
    """`~` resolved by the node's own home folder, for what no shell of the node reads."""
    return posixpath.join(home, path[2:]) if path.startswith("~/") else path


def _read(answer: program_answers.Facts, modules: Mapping[str, str], asked: float, answered: float) -> NodeFacts:
    return NodeFacts(
        home=answer["home"],
        hostname=answer["hostname"],
        python=answer["python"],
        modules={module: answer["modules"].get(module) for module in modules},
        origins={module: Origin(**origin) for module, origin in answer["origins"].items() if "version" in origin},
        cuda=answer.get("cuda"),
        nccl=answer.get("nccl"),
        interface=answer.get("interface"),
        machine=answer["machine"],
        clock_offset_s=answer["time"] - (asked + answered) / 2,
        clock_error_s=(answered - asked) / 2,
    )
