"""Discovery: reads facts of the nodes for the planning steps, before a preflight or a launch. It changes nothing."""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from backend.cluster.inventory.data_preview import PREVIEW_S, data_preview_on
from backend.cluster.inventory.dataset_size import COUNT_S, DataSize, data_size_on
from backend.cluster.inventory.hardware import HARDWARE_S, Hardware, read_node_hardware
from backend.cluster.inventory.model_profile import PROFILE_S, model_profile_on
from backend.cluster.inventory.software import SOFTWARE_S, NodeFacts, read_node_software
from backend.cluster.node import Node, NodeError, sftp_path
from backend.cluster.node_group import try_all
from backend.cluster.program_answers.data import DataPreview
from backend.cluster.slurm import Partition, find_partitions
from backend.cluster.ssh.host_keys import HostKey
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.problems import Problem, ProblemsError
from backend.runs.launch.preflight import ConnectedNodes

READ_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Discovery(Generic[T]):
    """Answers of the nodes, and the problems of nodes that did not answer."""

    answers: Mapping[int, T]
    """By node rank."""
    nodes: Mapping[int, str]
    """Names of the nodes that answered."""
    unknown_host_keys: tuple[HostKey, ...]
    """The user has to confirm them. Then the nodes can be asked again."""
    problems: tuple[Problem, ...]


def refuse_scheduler(job: Job) -> None:
    """Raise ProblemsError(nodes_by_scheduler) for work that needs the nodes themselves, if a scheduler chooses them."""
    if job.cluster.scheduler is not None:
        raise ProblemsError([Problem(code="nodes_by_scheduler", field="cluster.scheduler.kind")])


def refuse_without(job: Job, *paths: str) -> None:
    """Raise ProblemsError(needed_for_launch) for each of these fields that the job lacks.

    A scheduler takes the place of the hosts.
    """
    values = {"cluster.hosts": job.cluster.hosts or job.cluster.scheduler,
              "cluster.scheduler.login.address": job.cluster.scheduler, "model.path": job.model.path,
              "training.dataset": job.training.dataset, "training.dataset_dir": job.training.dataset_dir,
              "training.template": job.training.template}  # fmt: skip
    missing = [Problem(code="needed_for_launch", field=path) for path in paths if not values[path]]
    if missing:
        raise ProblemsError(missing)


def model_config(job: Job, connected: ConnectedNodes, limit: int) -> Discovery[bytes]:
    """Read at most `limit` bytes of the model's config.json on every connected node. A node without one is a problem
    (model_missing)."""
    folder = str(job.model.path)

    def read_node(rank: int, node: Node) -> bytes:
        try:
            return node.read(f"{sftp_path(folder)}/config.json", limit=limit)
        except NodeError as error:
            if error.code == "missing_file":
                raise NodeError("model_missing", node.name, field="model.path", path=folder) from error
            raise

    return _ask_all(connected, read_node, READ_S)


def model_profile(job: Job, connected: ConnectedNodes) -> Discovery[Mapping[str, Any]]:
    """Make the profile of the job's model on the first connected node."""
    return _ask_first(connected, lambda rank, node: model_profile_on(node, job, rank), PROFILE_S + 10)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeMemory:
    """Hardware and software of a node."""

    hardware: Hardware
    """Memory, GPUs, network, limits and the disk of output_dir."""
    facts: NodeFacts | None = None
    """Software; None when the job names no Python for the engine, or when it does not run."""

    @property
    def host_gib(self) -> float:
        """Return the memory of the node, or the limit of its container."""
        return self.hardware.memory_mib / 1024

    @property
    def gpu_gib(self) -> float | None:
        """Return the memory of the smallest GPU as nvidia-smi reports it; None without a report."""
        read = [gpu.memory_mib for gpu in self.hardware.gpus.gpus if gpu.memory_mib is not None]
        return round(min(read) / 1024, 2) if read else None


def memory(job: Job, connected: ConnectedNodes) -> Discovery[NodeMemory]:
    """Read hardware and, when the job names the engine's Python, software of every node."""

    broken: dict[int, NodeError] = {}

    def read_node(rank: int, node: Node) -> NodeMemory:
        hardware = read_node_hardware(job, rank, node)
        facts = read_node_software(job, rank, node) if environment_of(job, rank) else None
        if isinstance(facts, NodeError):
            broken[rank] = facts
            facts = None
        return NodeMemory(hardware=hardware, facts=facts)

    return _ask_all(connected, read_node, HARDWARE_S + SOFTWARE_S + 10, broken)


def data_size(job: Job, connected: ConnectedNodes) -> Discovery[DataSize]:
    """Count the samples of the job's data sets on the first connected node."""
    return _ask_first(connected, lambda rank, node: data_size_on(node, job, rank), COUNT_S + 10)


def partitions(connected: ConnectedNodes) -> Discovery[tuple[Partition, ...]]:
    """Read Slurm's partitions on the login node."""
    return _ask_first(connected, lambda rank, node: find_partitions(node), READ_S + 10)


def data_preview(job: Job, connected: ConnectedNodes, seed: int) -> Discovery[DataPreview]:
    """Encode rows of the job's data sets on the first connected node."""
    return _ask_first(connected, lambda rank, node: data_preview_on(node, job, rank, seed), PREVIEW_S + 10)


def _ask_all(
    connected: ConnectedNodes,
    question: Callable[[int, Node], T],
    limit_s: float,
    faults: Mapping[int, NodeError] = types.MappingProxyType({}),
) -> Discovery[T]:
    """Return the answers of all connected nodes, and the problems of the others. `faults` has the problems that the
    question found on nodes that answered."""
    answers, failures = try_all(connected.nodes, question, limit_s)
    names = {rank: connected.nodes[rank].name for rank in answers}
    problems = tuple(failure.problem for _, failure in sorted({**faults, **failures}.items()))
    return Discovery(answers=answers, nodes=names, unknown_host_keys=connected.unknown_host_keys,
                problems=(*problems, *connected.problems))  # fmt: skip


def _ask_first(connected: ConnectedNodes, question: Callable[[int, Node], T], limit_s: float) -> Discovery[T]:
    """Return the answer of the first connected node, or the problems of all nodes."""
    first_node = dict(list(connected.nodes.items())[:1])
    answers, failures = try_all(first_node, question, limit_s)
    if answers:
        return Discovery(answers=answers, nodes={rank: first_node[rank].name for rank in answers}, unknown_host_keys=(),
                    problems=())  # fmt: skip
    problems = (*(failure.problem for failure in failures.values()), *connected.problems)
    return Discovery(answers={}, nodes={}, unknown_host_keys=connected.unknown_host_keys, problems=problems)
