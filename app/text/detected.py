"""What the nodes' own tools say of them in words: a table of facts, and what is proposed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.text import t
from backend.cluster.inventory.fabric import Interface, common_network
from backend.cluster.inventory.gpus import BUSY_MIB, link_words
from backend.job.job import Job
from backend.job.mapping import to_mapping, with_values
from backend.job.problems import Problem
from backend.runs.api import NodeMemory

COLUMNS = ("node", "gpus", "links", "busy", "driver", "software", "host", "disk", "ports", "interfaces")
OF_GPUS = ("links", "busy", "driver")
GIB = 1 << 30


def proposal_notes(job: Job, found: Mapping[int, NodeMemory]) -> list[Problem]:
    """The faster network that all nodes share, and the ports that NCCL should use."""
    notes = []
    if by_name := proposed_addresses(job, found):
        values = {"addresses": ", ".join(f"{name}: {address}" for name, address in by_name.items())}
        notes.append(Problem(code="fabric_proposed", field="cluster.hosts", severity="note", values=values))
    if variables := proposed_variables(job, found):
        values = {"variables": " ".join(f"{name}={value}" for name, value in variables.items())}
        notes.append(Problem(code="nccl_proposed", field="environment", severity="note", values=values))
    return notes


def proposed_lines(job: Job, found: Mapping[int, NodeMemory]) -> dict[str, Any]:
    """The proposals as a part of the job file; empty without any."""
    lines: dict[str, Any] = {}
    if by_name := proposed_addresses(job, found):
        hosts = [
            replace(host, fabric_address=by_name.get(host.name, host.fabric_address)) for host in job.cluster.hosts
        ]
        lines["cluster"] = {"hosts": to_mapping(with_values(job, {"cluster.hosts": tuple(hosts)}))["cluster"]["hosts"]}
    if variables := proposed_variables(job, found):
        lines["environment"] = {**job.environment, **variables}
    return lines


def proposed_addresses(job: Job, found: Mapping[int, NodeMemory]) -> dict[str, str]:
    """Fabric addresses by the names of nodes that should have one: all nodes share a faster network."""
    fabrics = {rank: one.survey.fabric for rank, one in found.items()}
    hosts = job.cluster.hosts
    shared = common_network(fabrics) if len(found) == len(hosts) > 1 else {}
    return {
        hosts[rank].name: address
        for rank, address in shared.items()
        if hosts[rank].fabric_address is None and hosts[rank].address != address
    }


def proposed_variables(job: Job, found: Mapping[int, NodeMemory]) -> dict[str, str]:
    """NCCL's ports for a job of several nodes that says nothing of them itself."""
    variables = nccl_variables(found) if len(found) > 1 else {}
    return {} if variables.keys() & job.environment.keys() else variables


def nccl_variables(found: Mapping[int, NodeMemory]) -> dict[str, str]:
    """NCCL_IB_HCA and NCCL_IB_GID_INDEX where all nodes need the same; empty where NCCL finds them by itself.

    It takes every active port, so only where some must be left out; the index matters for RoCE.
    """
    fabrics = [one.survey.fabric for one in found.values()]
    names, indices = {one.hca for one in fabrics}, {one.gid_index for one in fabrics}
    variables = {}
    leaves_out = any(sum(port.is_active for port in one.ports) > len(one.used_ports) for one in fabrics)
    if len(names) == 1 and (name := names.pop()) and leaves_out:
        variables["NCCL_IB_HCA"] = name
    if len(indices) == 1 and (index := indices.pop()) is not None:
        variables["NCCL_IB_GID_INDEX"] = str(index)
    return variables


def table(job: Job, found: Mapping[int, NodeMemory], lang: str) -> dict[str, Any]:
    """A row a node, under titles; what is told of GPUs only where a node has some."""
    has_gpus = any(one.survey.gpus.gpus for one in found.values())
    columns = [name for name in COLUMNS if has_gpus or name not in OF_GPUS]
    rows = [_row(job, rank, one, lang) for rank, one in found.items()]
    return {
        "head": [t(lang, f"wizard.found.{name}") for name in columns],
        "rows": [[row[name] for name in columns] for row in rows],
    }


def _row(job: Job, rank: int, one: NodeMemory, lang: str) -> dict[str, str]:
    gpus, fabric = one.survey.gpus, one.survey.fabric
    first = gpus.gpus[0] if gpus.gpus else None
    names = sorted({gpu.name for gpu in gpus.gpus})
    kinds = f"{len(gpus.usable)} × {' / '.join(names)}" if names else t(lang, "wizard.found.cpu_node")
    busy = [
        f"GPU {gpu.index}: {used_mib / 1024:.1f} GiB"
        for gpu in gpus.gpus
        if (used_mib := gpu.memory_used_mib or 0) > BUSY_MIB
    ]
    users = sorted({process.user for process in gpus.processes if process.user})
    ports = [f"{port.name} {'IB' if port.is_infiniband else 'RoCE'} {port.rate_gbit:g} Gbit/s {port.state}"
             + (f" GID {port.gid_index}" if port.gid_index is not None else "") for port in fabric.ports]  # fmt: skip
    return {
        "node": job.cluster.connected_hosts[rank].name,
        "gpus": f"{kinds} ({gpus.trouble})" if gpus.trouble else kinds,
        "links": " · ".join(
            filter(None, (link_words(gpus.links), f"PCIe {first.pcie}" if first and first.pcie else ""))
        )
        or "–",
        "busy": "; ".join(busy + users) or (t(lang, "wizard.found.idle") if first else "–"),
        "driver": f"{first.driver} · CUDA {gpus.cuda or '–'}" if first else "–",
        "software": _software(one),
        "host": _host(one),
        "disk": ", ".join(
            f"{disk.free / GIB:.0f} / {disk.total / GIB:.0f} GiB {disk.kind}" for disk in one.survey.disks.values()
        )
        or "–",
        "ports": "; ".join(ports) or t(lang, "wizard.found.none"),
        "interfaces": "; ".join(_interface(job, one, way, lang) for way in fabric.interfaces) or "–",
    }


def _interface(job: Job, one: NodeMemory, way: Interface, lang: str) -> str:
    """With its role: the default route, and what NCCL_SOCKET_IFNAME will name at a launch."""
    speed = f" {way.gbit:g} Gbit/s" if way.gbit else ""
    roles = [t(lang, "wizard.found.default_route")] if way.name in one.survey.fabric.default_routes else []
    if one.facts and one.facts.interface == way.name and "NCCL_SOCKET_IFNAME" not in job.environment:
        roles.append("NCCL_SOCKET_IFNAME")
    return f"{way.name} {', '.join(way.addresses)}{speed}" + (f" ({', '.join(roles)})" if roles else "")


def _software(one: NodeMemory) -> str:
    """Versions of what the engine's Python has; what it lacks with a dash."""
    if one.facts is None:
        return "–"
    versions = {"Python": one.facts.python, **one.facts.modules, "NCCL": one.facts.nccl}
    return ", ".join(f"{name} {version or '–'}" for name, version in versions.items() if version or name != "NCCL")


def _host(one: NodeMemory) -> str:
    """CPUs, memory, shared memory, and the limits of `ulimit -l` and `-n`."""
    shm = f"shm {one.survey.shm / GIB:.3g} GiB" if one.survey.shm is not None else ""
    locked = "∞" if one.survey.memlock is None else f"{one.survey.memlock >> 10} KiB"
    limits = f"ulimit -l {locked} -n {'∞' if one.survey.nofile is None else one.survey.nofile}"
    return " · ".join(filter(None, (f"{one.survey.cpus} CPU", f"{one.host_gib:.0f} GiB", shm, limits)))
