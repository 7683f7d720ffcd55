"""The checks before a launch, on all nodes at once. They change nothing on a node and leave nothing behind."""

import posixpath
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from backend.cluster.inventory.hardware import Survey
from backend.cluster.inventory.software import (
    NodeFacts,
    ask_program,
    expand,
    inspect,
    needed_environment,
    python_command,
)
from backend.cluster.node import Node, NodeError, ask
from backend.cluster.node_group import ends_of_all
from backend.cluster.node_programs import SUPERVISOR, node_program
from backend.cluster.preflight.deepspeed_extensions import EXTENSIONS, check_parts, needed_parts
from backend.cluster.preflight.equality import (
    check_engine,
    check_machines,
    check_prints,
    check_shared,
    check_versions,
)
from backend.cluster.preflight.machine import (
    check_clocks,
    check_cuda,
    check_gpus,
    check_interfaces,
    check_logout,
    check_rdma,
    check_room,
    check_space,
)
from backend.cluster.preflight.master_port import check_port
from backend.cluster.preflight.results import (
    LOCKS,
    CheckName,
    CheckResult,
    Checks,
    check_dataset,
    check_gpu_memory,
    check_lock,
    check_model,
    check_writable,
    dataset_names,
    run_folders,
)
from backend.cluster.program_answers import Lock, Nothing, Paths, Prints, Seen, Written
from backend.cluster.typed_json import answer_of
from backend.estimate.memory.checkpoint_size import checkpoint_bytes
from backend.job.cluster import Host
from backend.job.job import Job

T = TypeVar("T")

ASK_S = 30.0
PRINTS_S = 60.0
"""Three places of every file of a model, from a slow disk."""
SEEN_S = 5.0
"""How long a network disk may take to show a node what another one has written."""
NEEDS_PYTHON: tuple[CheckName, ...] = ("engine", "model", "dataset", "run_root", "output_dir", "lock")
COMPARE = "fingerprints.py"


def preflight(
    job: Job,
    nodes: Mapping[int, Node | NodeError],
    facts: Mapping[int, NodeFacts | NodeError],
    surveys: Mapping[int, Survey | NodeError],
    port: int,
) -> list[CheckResult]:
    """Every check of every node, by node and in the order they depend on one another; then those between nodes.

    A node that could not be reached is given as its NodeError, as is what could not be read of one. The job has passed
    check_launch.
    """
    checks = {rank: Checks(rank, host.name) for rank, host in enumerate(job.cluster.hosts)}
    connected = {rank: node for rank, node in nodes.items() if not isinstance(node, NodeError)}
    known = {rank: fact for rank, fact in facts.items() if isinstance(fact, NodeFacts) and rank in connected}
    ready = {rank: connected[rank] for rank in known}
    paths = ends_of_all(ready, lambda rank, node: _ask_paths(job, rank, node), ASK_S + 10)
    locks = ends_of_all(ready, lambda rank, node: _ask_lock(job, rank, node, known[rank].home), ASK_S + 10)
    surveys = {rank: surveys[rank] for rank in ready}
    results = []
    for rank, of in checks.items():
        results += _check_node(
            job, of, nodes[rank], facts.get(rank), paths.get(rank), locks.get(rank), surveys.get(rank)
        )
    if known:
        results += _check_equal(job, checks, known, ready, surveys)
    return results + _check_fabric(job, checks, known, ready, surveys, port)


def _check_equal(
    job: Job,
    checks: Mapping[int, Checks],
    known: Mapping[int, NodeFacts],
    nodes: Mapping[int, Node],
    surveys: Mapping[int, Survey | NodeError],
) -> list[CheckResult]:
    """What nodes have to have in common; of a single one there is nothing to ask."""
    results = check_versions(job, checks, known)
    if len(nodes) < 2:
        return results
    results += check_machines(checks, known, _read(surveys))
    wanted = {
        "model": job.model.path,
        "folder": job.training.dataset_dir or "/",
        "datasets": dataset_names(job),
        "plain": job.traits.environment == "swift",
    }
    prints = ends_of_all(nodes, lambda rank, node: _compare(job, rank, node, Prints, "prints", wanted), PRINTS_S + 10)
    results += check_prints(job, checks, prints)
    # Ranks of all nodes write parts of one checkpoint and read each other's; the other engines can do without.
    if job.traits.is_megatron and 0 in nodes:
        results += _check_shared(job, checks, nodes)
    return results + check_clocks(checks, known)


def _check_shared(job: Job, checks: Mapping[int, Checks], nodes: Mapping[int, Node]) -> list[CheckResult]:
    """Node 0 writes a file that nobody can guess, the others look for it, node 0 takes it away."""
    wanted: dict[str, Any] = {"folder": job.training.output_dir, "name": f".megaboard-{secrets.token_hex(8)}"}
    try:
        written = _compare(job, 0, nodes[0], Written, "write", wanted)
        if not written["written"]:
            return [of.skipped("output_shared") for of in checks.values()]  # check_writable says why
        wanted["seconds"] = SEEN_S
        others = {rank: node for rank, node in nodes.items() if rank != 0}
        try:
            seen = ends_of_all(others, lambda rank, node: _compare(job, rank, node, Seen, "read", wanted), ASK_S + 10)
        finally:
            _compare(job, 0, nodes[0], Nothing, "remove", wanted)
    except NodeError as error:
        return [checks[0].raised("output_shared", error)]
    return check_shared(job, checks, seen)


def _check_fabric(
    job: Job,
    checks: Mapping[int, Checks],
    known: Mapping[int, NodeFacts],
    nodes: Mapping[int, Node],
    surveys: Mapping[int, Survey | NodeError],
    port: int,
) -> list[CheckResult]:
    results = check_interfaces(job, checks, known, _read(surveys))
    if job.cluster.nodes > 1:
        results += check_rdma(checks, _read(surveys))
    first, way = surveys.get(0), known[0].interface if 0 in known else None
    own = [one.addresses[0] for one in first.fabric.interfaces if one.name == way] if isinstance(first, Survey) else []
    return results + check_port(job, checks, nodes, port, own[0] if own else None)


def _compare(job: Job, rank: int, node: Node, shape: type[T], action: str, wanted: Mapping[str, object]) -> T:
    return ask_program(node, needed_environment(job, rank, node), shape, COMPARE, action, wanted, PRINTS_S)


def _read(surveys: Mapping[int, Survey | NodeError]) -> dict[int, Survey]:
    return {rank: one for rank, one in surveys.items() if isinstance(one, Survey)}


def lock_path(run_root: str, host: Host) -> str:
    """The file that says which run uses a node; `run_root` is absolute. Nodes that share an address have ports."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host.dialled_address)
    return posixpath.join(run_root, LOCKS, name if host.port == 22 else f"{name}_{host.port}")


def _check_node(
    job: Job,
    of: Checks,
    node: Node | NodeError,
    facts: NodeFacts | NodeError | None,
    paths: Paths | NodeError | None,
    lock: Lock | NodeError | None,
    survey: Survey | NodeError | None,
) -> list[CheckResult]:
    if isinstance(node, NodeError):
        return [of.raised("login", node), of.skipped("python"), *(of.skipped(name) for name in NEEDS_PYTHON)]
    results = [of.ok("login")]
    if not isinstance(facts, NodeFacts):
        python = of.raised("python", facts) if facts else of.skipped("python")
        return [*results, python, *(of.skipped(name) for name in NEEDS_PYTHON)]
    results.append(of.ok("python", version=facts.python))
    if isinstance(survey, Survey):
        results += [*check_gpus(job, of, survey.gpus), *check_gpu_memory(job, of, survey.gpus)]
        results += [*check_cuda(job, of, facts, survey.gpus), *check_room(job, of, survey)]
        results += check_logout(of, survey)
    elif survey is not None:
        results.append(of.raised("gpus", survey))
    results.append(check_engine(job, of, facts))
    results += _or_error(
        of,
        "model",
        paths,
        lambda it: [
            check_model(job, of, it),
            check_dataset(job, of, it),
            *check_writable(job, of, it),
            *check_parts(job, of, it),
        ],
    )
    if isinstance(survey, Survey):
        results += check_space(job, of, survey, _own_share(job, of.rank))
    return results + _or_error(of, "lock", lock, lambda it: [check_lock(of, it)])


def _own_share(job: Job, rank: int) -> int | None:
    """Bytes of a checkpoint that a node writes: rank 0 of the plain engine and of FSDP, which is asked for whole files
    (engines/llamafactory_fsdp.py), writes all; the others divide it."""
    whole = checkpoint_bytes(job)
    if rank == 0 or whole is None:
        return whole
    traits = job.traits
    return whole // job.cluster.nodes if traits.is_megatron or traits.zero_stage else None


def _or_error(
    of: Checks,
    name: CheckName,
    answer: T | NodeError | None,
    judge: Callable[[T], list[CheckResult]],
) -> list[CheckResult]:
    if answer is None:
        return [of.skipped(name)]
    return [of.raised(name, answer)] if isinstance(answer, NodeError) else judge(answer)


def _ask_paths(job: Job, rank: int, node: Node) -> Paths:
    wanted = {
        "model": job.model.path,
        "dataset_dir": job.training.dataset_dir,
        "datasets": dataset_names(job),
        "writable": [*run_folders(job), job.training.output_dir],
        "parts": needed_parts(job),
        "extensions": job.environment.get(EXTENSIONS),
    }
    return inspect(node, needed_environment(job, rank, node), Paths, "paths", wanted, ASK_S)


def _ask_lock(job: Job, rank: int, node: Node, home: str) -> Lock:
    path = lock_path(expand(job.cluster.run_root, home), job.cluster.hosts[rank])
    argv = python_command(needed_environment(job, rank, node), ["-", "holder", path])
    return answer_of(node.name, Lock, ask(node, argv, timeout_s=ASK_S, stdin=node_program(SUPERVISOR)))
