"""Choice of the master port on node 0, and the check that every node reaches it."""

import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from backend.cluster.inventory.software import ask_program, needed_environment, outside
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import ends_of_all
from backend.cluster.preflight.readings import GangReadings
from backend.cluster.preflight.results import CheckResult, Checks
from backend.cluster.program_answers.checks import Dialled, FreePort, Listened
from backend.job.job import Job

T = TypeVar("T")

ASK_S = 30.0
DIAL_S = 8.0
"""Time that nodes try to reach the master's port. A listener starts in less than one second."""
DIAL = "dial.py"


def choose_port(job: Job, node: Node, ports: Sequence[int]) -> int:
    """Return the first of `ports` that is free on node 0, or raise NodeError(no_free_port)."""
    answer = _try_port(job, 0, node, FreePort, "free_port", {"ports": list(ports)})
    if "port" not in answer:
        first, last = job.cluster.port_range
        raise NodeError("no_free_port", node.name, field="cluster.port_range", first=first, last=last)
    return answer["port"]


def check_port(gang: GangReadings) -> list[CheckResult]:
    """Check that every node reaches the master port. Node 0 listens as the job's master does, and dials it too."""
    job, checks, nodes, port = gang.job, gang.checks, gang.nodes, gang.port
    if 0 not in nodes:
        return [builder.skipped("master_port") for builder in checks.values()]
    address = job.cluster.hosts[0].dialled_address
    words = {rank: secrets.token_hex(8) for rank in nodes}

    def work(rank: int, node: Node) -> Listened | Dialled:
        dialled = {"address": address, "port": port, "seconds": DIAL_S, "word": words[rank]}
        if rank == 0:  # one command listens and dials, because sshd may allow no second command
            question = {"port": port, "seconds": DIAL_S + 2, "words": [*words.values()], "dial": dialled}
            return _try_port(job, 0, node, Listened, "listen", question)
        return _try_port(job, rank, node, Dialled, "dial", dialled)

    answers = ends_of_all(nodes, work, ASK_S + 10)
    listener = answers.pop(0)
    if isinstance(listener, NodeError):
        wrong = checks[0].raised("master_port", listener)
    elif not (bound := cast(Listened, listener))["bound"]:
        wrong = checks[0].wrong("master_port", "port_taken", "cluster.port_range", port=port)
    else:
        dials = cast(dict[int, Dialled | NodeError], answers)
        dials |= {0: bound["dialled"]} if "dialled" in bound else {}
        own_address = _own_address(gang)
        return [_judge_dial(builder, dials.get(rank), address, port, own_address) for rank, builder in checks.items()]
    return [wrong, *(builder.skipped("master_port") for rank, builder in checks.items() if rank != 0)]


def _own_address(gang: GangReadings) -> str | None:
    """Return an address of node 0 for the nodes that cannot resolve its name."""
    if 0 not in gang.hardware:
        return None
    interfaces = gang.hardware[0].fabric.interfaces
    return next((interface.addresses[0] for interface in interfaces if interface.name == gang.facts[0].interface), None)


def _judge_dial(
    checks: Checks, answer: Dialled | NodeError | None, address: str, port: int, own_address: str | None
) -> CheckResult:
    if answer is None:
        return checks.skipped("master_port")
    if isinstance(answer, NodeError):
        return checks.raised("master_port", answer)
    if answer["reached"]:
        return checks.ok("master_port", address=address, port=port)
    field = "cluster.hosts[0].fabric_address"
    detail = answer.get("detail", "")
    if not answer.get("is_named", True):
        line = shlex.quote(f"{own_address or 'ADDRESS'} {address}")
        command = f"echo {line} | sudo tee -a /etc/hosts"
        return checks.wrong(
            "master_port", "master_not_resolved", field, address=address, detail=detail, command=command
        )
    return checks.wrong("master_port", "master_not_reached", field, address=address, port=port, detail=detail)


def _try_port(job: Job, rank: int, node: Node, shape: type[T], action: str, question: Mapping[str, object]) -> T:
    return ask_program(node, outside(needed_environment(job, rank, node)), shape, DIAL, action, question, ASK_S)
