"""The hardware and software of the nodes as a table of words, and the changes of the job that follow from them."""

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


def proposal_notes(job: Job, nodes: Mapping[int, NodeMemory]) -> list[Problem]:
    """Return notes that propose a faster network that all nodes share, and the ports for NCCL."""
    notes = []
    if by_name := proposed_addresses(job, nodes):
        values = {"addresses": ", ".join(f"{name}: {address}" for name, address in by_name.items())}
        notes.append(Problem(code="fabric_proposed", field="cluster.hosts", severity="note", values=values))
    if variables := proposed_variables(job, nodes):
        values = {"variables": " ".join(f"{name}={value}" for name, value in variables.items())}
        notes.append(Problem(code="nccl_proposed", field="environment", severity="note", values=values))
    return notes


def proposed_lines(job: Job, nodes: Mapping[int, NodeMemory]) -> dict[str, Any]:
    """Return the proposals as a part of the job file. Empty if there are none."""
    lines: dict[str, Any] = {}
    if by_name := proposed_addresses(job, nodes):
        hosts = [
            replace(host, fabric_address=by_name.get(host.name, host.fabric_address)) for host in job.cluster.hosts
        ]
        lines["cluster"] = {"hosts": to_mapping(with_values(job, {"cluster.hosts": tuple(hosts)}))["cluster"]["hosts"]}
    if variables := proposed_variables(job, nodes):
        lines["environment"] = {**job.environment, **variables}
    return lines


def proposed_addresses(job: Job, nodes: Mapping[int, NodeMemory]) -> dict[str, str]:
    """Return the fabric addresses that nodes lack, by node name. All nodes must share a faster network."""
    fabrics = {rank: node.hardware.fabric for rank, node in nodes.items()}
    hosts = job.cluster.hosts
    shared = common_network(fabrics) if len(nodes) == len(hosts) > 1 else {}
    return {
        hosts[rank].name: address
        for rank, address in shared.items()
        if hosts[rank].fabric_address is None and hosts[rank].address != address
    }


def proposed_variables(job: Job, nodes: Mapping[int, NodeMemory]) -> dict[str, str]:
    """Return the variables that name NCCL's ports. Empty for one node, and for a job that sets one of them."""
    variables = nccl_variables(nodes) if len(nodes) > 1 else {}
    return {} if variables.keys() & job.environment.keys() else variables


def nccl_variables(nodes: Mapping[int, NodeMemory]) -> dict[str, str]:
    """Return NCCL_IB_HCA and NCCL_IB_GID_INDEX, each if all nodes need the same value and NCCL does not find it.

    NCCL takes every active port, so NCCL_IB_HCA is needed only to leave some out. The index matters for RoCE.
    """
    fabrics = [node.hardware.fabric for node in nodes.values()]
    names, indices = {fabric.hca for fabric in fabrics}, {fabric.gid_index for fabric in fabrics}
    variables = {}
    leaves_out = any(sum(port.is_active for port in fabric.ports) > len(fabric.used_ports) for fabric in fabrics)
    if len(names) == 1 and (name := names.pop()) and leaves_out:
        variables["NCCL_IB_HCA"] = name
    if len(indices) == 1 and (index := indices.pop()) is not None:
        variables["NCCL_IB_GID_INDEX"] = str(index)
    return variables


def table(job: Job, nodes: Mapping[int, NodeMemory], lang: str) -> dict[str, Any]:
    """Return a table with one row per node. It has the columns of GPUs only if a node has GPUs."""
    has_gpus = any(node.hardware.gpus.gpus for node in nodes.values())
    columns = [name for name in COLUMNS if has_gpus or name not in OF_GPUS]
    rows = [_row(job, rank, node, lang) for rank, node in nodes.items()]
    return {
        "head": [t(lang, f"wizard.found.{name}") for name in columns],
        "rows": [[row[name] for name in columns] for row in rows],
    }


def _row(job: Job, rank: int, node: NodeMemory, lang: str) -> dict[str, str]:
    gpus, fabric = node.hardware.gpus, node.hardware.fabric
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
        "software": _software(node),
        "host": _host(node),
        "disk": ", ".join(
            f"{disk.free / GIB:.0f} / {disk.total / GIB:.0f} GiB {disk.kind}" for disk in node.hardware.disks.values()
        )
        or "–",
        "ports": "; ".join(ports) or t(lang, "wizard.found.none"),
        "interfaces": "; ".join(_interface(job, node, way, lang) for way in fabric.interfaces) or "–",
    }


def _interface(job: Job, node: NodeMemory, way: Interface, lang: str) -> str:
    """Return an interface with its role: default route, or the interface that a launch gives to NCCL."""
    speed = f" {way.gbit:g} Gbit/s" if way.gbit else ""
    roles = [t(lang, "wizard.found.default_route")] if way.name in node.hardware.fabric.default_routes else []
    if node.facts and node.facts.interface == way.name and "NCCL_SOCKET_IFNAME" not in job.environment:
        roles.append("NCCL_SOCKET_IFNAME")
    return f"{way.name} {', '.join(way.addresses)}{speed}" + (f" ({', '.join(roles)})" if roles else "")


def _software(node: NodeMemory) -> str:
    """Return the versions of the engine's packages. A package that is missing has a dash."""
    if node.facts is None:
        return "–"
    versions = {"Python": node.facts.python, **node.facts.modules, "NCCL": node.facts.nccl}
    return ", ".join(f"{name} {version or '–'}" for name, version in versions.items() if version or name != "NCCL")


def _host(node: NodeMemory) -> str:
    """Return CPUs, memory, shared memory, and the limits of `ulimit -l` and `-n`."""
    shm = f"shm {node.hardware.shm / GIB:.3g} GiB" if node.hardware.shm is not None else ""
    locked = "∞" if node.hardware.memlock is None else f"{node.hardware.memlock >> 10} KiB"
    limits = f"ulimit -l {locked} -n {'∞' if node.hardware.nofile is None else node.hardware.nofile}"
    return " · ".join(filter(None, (f"{node.hardware.cpus} CPU", f"{node.host_gib:.0f} GiB", shm, limits)))
