"""Checks that all nodes are equal. A node that differs from most nodes gets the command that makes it equal."""

import posixpath
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from backend.cluster.inventory.hardware import Hardware
from backend.cluster.inventory.software import NodeFacts, ask_program, needed_environment, outside
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import ends_of_all
from backend.cluster.preflight.files import ASK_S, data_on_node
from backend.cluster.preflight.fix_commands import copy_command, remove_command
from backend.cluster.preflight.readings import GangReadings
from backend.cluster.preflight.results import CheckName, CheckResult
from backend.cluster.program_answers.checks import MarkSeen, Nothing, Prints, Written
from backend.job.job import Job

PROGRAM = "fingerprints.py"
PRINTS_S = 60.0
"""The program reads three parts of every file of a model, from a slow disk."""
SEEN_S = 5.0
"""Time that a network disk may take to show a node the file of another node."""
_NAMES_SHOWN = 4

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


def usual(values: Mapping[int, H]) -> H:
    """Return the value of most nodes. Of two values that are equally frequent, return that of the first node."""
    counts: dict[H, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    return max(counts, key=lambda value: counts[value])


def named(names: Sequence[str]) -> list[str]:
    """Return the first names of a list, and `...` for the rest."""
    return [*names[:_NAMES_SHOWN], *["..."] * (len(names) > _NAMES_SHOWN)]


def check_machines(gang: GangReadings) -> list[CheckResult]:
    """Check that all nodes have the same GPUs, driver, NCCL and Python, and that no two nodes are one machine.

    The slowest node makes all others wait.
    """
    facts, checks = gang.facts, gang.checks
    if len(facts) < 2:
        return []
    described = {rank: _describe(facts[rank], gang.hardware.get(rank)) for rank in facts}
    keys = next(iter(described.values()))
    most = {key: usual({rank: machine[key] for rank, machine in described.items()}) for key in keys}
    results = []
    owners: dict[str, int] = {}
    for rank, own in described.items():
        odd = [key for key in keys if own[key] != most[key] and own[key] and most[key]]
        hardware, field = gang.hardware.get(rank), checks[rank].address_field
        firsts = [owners.setdefault(gpu.uuid, rank) for gpu in (hardware.gpus.gpus if hardware else ())]
        first = min(firsts, default=rank)
        if first != rank:
            results.append(checks[rank].warning("machines", "same_machine", field, first=checks[first].node))
        elif odd:
            here, there = (", ".join(machine[key] for key in odd) for machine in (own, most))
            results.append(checks[rank].warning("machines", "machines_differ", field, here=here, others=there))
        else:
            results.append(checks[rank].ok("machines", **own))
    return results


def _describe(facts: NodeFacts, hardware: Hardware | None) -> dict[str, str]:
    gpus = hardware.gpus.gpus if hardware else ()
    names = sorted({gpu.name for gpu in gpus})
    return {
        "python": "Python " + ".".join(facts.python.split(".")[:2]),
        "nccl": f"NCCL {facts.nccl}" if facts.nccl else "",
        "gpus": f"{len(gpus)} × {' / '.join(names)}" if gpus else "",
        "driver": f"driver {gpus[0].driver}" if gpus else "",
    }


def check_prints(gang: GangReadings) -> list[CheckResult]:
    """Check that the files of the model and the data are equal on all nodes. Other checks report missing files."""
    if len(gang.nodes) < 2:
        return []
    job = gang.job
    question = {
        "model": job.model.path,
        "folder": job.training.dataset_dir or "/",
        "datasets": data_on_node(job),
        "plain": job.traits.environment == "swift",
    }
    prints = ends_of_all(
        gang.nodes, lambda rank, node: _ask(job, rank, node, Prints, "prints", question), PRINTS_S + 10
    )
    folder = str(job.model.path)
    results = _check_files(
        gang, prints, "model", "model_equal", "model.path", lambda name: posixpath.join(folder, name)
    )
    # The name of a data set's description starts with the file that has it.
    return results + _check_files(
        gang, prints, "data", "data_equal", "training.dataset", lambda name: name.partition(": ")[0]
    )


def _check_files(
    gang: GangReadings,
    prints: Mapping[int, Prints | NodeError],
    part: Literal["model", "data"],
    name: CheckName,
    field: str,
    path_of: Callable[[str], str],
) -> list[CheckResult]:
    checks = gang.checks
    failed = [checks[rank].raised(name, answer) for rank, answer in prints.items() if isinstance(answer, NodeError)]
    answered = {rank: answer.get(part) for rank, answer in prints.items() if not isinstance(answer, NodeError)}
    present = {rank: files for rank, files in answered.items() if files}
    if len(present) < 2:
        return failed
    whole = {rank: tuple(sorted(files.items())) for rank, files in present.items()}
    most = usual(whole)
    source = next(rank for rank, files in whole.items() if files == most)
    results = []
    for rank, files in present.items():
        differ = sorted(key for key, _ in set(most) - set(whole[rank]))
        extra = sorted(files.keys() - dict(most).keys())
        if not differ and not extra:
            results.append(checks[rank].ok(name, files=len(files)))
            continue
        paths = list(dict.fromkeys(path_of(key) for key in differ or extra))
        command = copy_command(gang.job.cluster.hosts[source], paths) if differ else remove_command(paths)
        shown = named([posixpath.basename(path) for path in paths])
        code = "model_differs" if name == "model_equal" else "data_differs"
        values = {"names": shown, "count": len(paths), "source": checks[source].node, "command": command}
        results.append(checks[rank].wrong(name, code, field, **values))
    return results + failed


def check_shared(gang: GangReadings) -> list[CheckResult]:
    """Check that all nodes see the file that node 0 writes into output_dir. Node 0 removes it afterwards.

    With Megatron the ranks of all nodes write parts of one checkpoint and read each other's. The other engines do not,
    but a spare has no checkpoint of its own.
    """
    job, nodes, checks = gang.job, gang.nodes, gang.checks
    has_spares = len(job.cluster.hosts) > job.cluster.nodes
    if len(nodes) < 2 or 0 not in nodes or not (job.traits.is_megatron or has_spares):
        return []
    code = "output_not_shared" if job.traits.is_megatron else "output_not_shared_with_spares"
    question: dict[str, Any] = {"folder": job.training.output_dir, "name": f".megaboard-{secrets.token_hex(8)}"}
    try:
        written = _ask(job, 0, nodes[0], Written, "write", question)
        if not written["written"]:
            return [builder.skipped("output_shared") for builder in checks.values()]  # check_writable reports why
        question["seconds"] = SEEN_S
        others = {rank: node for rank, node in nodes.items() if rank != 0}
        try:
            seen = ends_of_all(others, lambda rank, node: _ask(job, rank, node, MarkSeen, "read", question), ASK_S + 10)
        finally:
            _ask(job, 0, nodes[0], Nothing, "remove", question)
    except NodeError as error:
        return [checks[0].raised("output_shared", error)]
    results = [checks[0].ok("output_shared")]
    for rank, answer in seen.items():
        builder = checks[rank]
        if isinstance(answer, NodeError):
            results.append(builder.raised("output_shared", answer))
        elif answer["seen"]:
            results.append(builder.ok("output_shared"))
        else:
            values = {"path": job.training.output_dir, "first": checks[0].node, "engine": job.engine}
            results.append(builder.warning("output_shared", code, "training.output_dir", **values))
    return results


def _ask(job: Job, rank: int, node: Node, shape: type[T], action: str, question: Mapping[str, object]) -> T:
    return ask_program(node, outside(needed_environment(job, rank, node)), shape, PROGRAM, action, question, PRINTS_S)
