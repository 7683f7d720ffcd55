"""What planning asks of the nodes before anything is checked or launched; it only reads files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from backend.cluster.inventory.dataset_size import COUNT_S, DataSize, data_size_on
from backend.cluster.inventory.hardware import HARDWARE_S, Hardware, read_node_hardware
from backend.cluster.inventory.software import SOFTWARE_S, NodeFacts, read_node_software
from backend.cluster.node import Node, NodeError, sftp_path
from backend.cluster.node_group import try_all
from backend.cluster.ssh.host_keys import HostKey
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.problems import Problem, ProblemsError
from backend.runs.launch.preflight import ConnectedNodes

READ_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Discovery(Generic[T]):
    """What the nodes that could be asked answered, and why the others did not."""

    answers: Mapping[int, T]
    """By node rank."""
    nodes: Mapping[int, str]
    """Names of the nodes that answered."""
    unknown_host_keys: tuple[HostKey, ...]
    """To be shown to the user, who confirms them or not; then ask again."""
    problems: tuple[Problem, ...]


def refuse_without(job: Job, *needed: str) -> None:
    """Raises ProblemsError(needed_for_launch) for those of the job's nodes and folders that it lacks."""
    values = {"cluster.hosts": job.cluster.hosts, "model.path": job.model.path,
              "training.dataset": job.training.dataset, "training.dataset_dir": job.training.dataset_dir}  # fmt: skip
    missing = [Problem(code="needed_for_launch", field=path) for path in needed if not values[path]]
    if missing:
        raise ProblemsError(missing)


def model_config(job: Job, connected: ConnectedNodes, limit: int) -> Discovery[bytes]:
    """At most `limit` bytes of config.json in the model's folder, from the first node that can be reached."""
    path = f"{sftp_path(str(job.model.path))}/config.json"
    return _ask_first(connected, lambda rank, node: node.read(path, limit=limit), READ_S)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeMemory:
    """What a node has."""

    survey: Hardware
    """Its memory, GPUs, network, limits and the disk of output_dir."""
    facts: NodeFacts | None = None
    """Its software; None where the engine's Python is not named, or cannot be run."""

    @property
    def host_gib(self) -> float:
        """Of the node, or what its container may use."""
        return self.survey.memory_mib / 1024

    @property
    def gpu_gib(self) -> float | None:
        """Of the smallest of its GPUs, as nvidia-smi counts it; None where it does not tell."""
        read = [gpu.memory_mib for gpu in self.survey.gpus.gpus if gpu.memory_mib is not None]
        return round(min(read) / 1024, 2) if read else None


def memory(job: Job, connected: ConnectedNodes) -> Discovery[NodeMemory]:
    """Of every node, with what else it is made of and, where the engine's Python is named, what that has."""

    broken: dict[int, NodeError] = {}

    def one(rank: int, node: Node) -> NodeMemory:
        found = read_node_hardware(job, rank, node)
        facts = read_node_software(job, rank, node) if environment_of(job, rank) else None
        if isinstance(facts, NodeError):
            broken[rank] = facts
            facts = None
        return NodeMemory(survey=found, facts=facts)

    answers, failures = try_all(connected.nodes, one, HARDWARE_S + SOFTWARE_S + 10)
    names = {rank: connected.nodes[rank].name for rank in answers}
    problems = tuple(failure.problem for _, failure in sorted({**broken, **failures}.items()))
    return Discovery(answers=answers, nodes=names, unknown_host_keys=connected.unknown_host_keys,
                problems=(*problems, *connected.problems))  # fmt: skip


def data_size(job: Job, connected: ConnectedNodes) -> Discovery[DataSize]:
    """The samples of the job's data sets, counted by the first node that can be reached."""
    return _ask_first(connected, lambda rank, node: data_size_on(node, job, rank), COUNT_S + 10)


def _ask_first(connected: ConnectedNodes, question: Callable[[int, Node], T], limit_s: float) -> Discovery[T]:
    """The answer of the first node that can be reached; without one, why, and why others could not be asked."""
    first = dict(list(connected.nodes.items())[:1])
    answers, failures = try_all(first, question, limit_s)
    if answers:
        return Discovery(answers=answers, nodes={rank: first[rank].name for rank in answers}, unknown_host_keys=(),
                    problems=())  # fmt: skip
    problems = (*(failure.problem for failure in failures.values()), *connected.problems)
    return Discovery(answers={}, nodes={}, unknown_host_keys=connected.unknown_host_keys, problems=problems)
