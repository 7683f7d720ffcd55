"""What the nodes' own tools say of them, as edits of the draft, proposals to be taken, and a table to look at."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.i18n import t
from app.wizard.hosts import to_form, with_fabric
from backend.cluster.fabric import Interface, common_network
from backend.cluster.gpus import Gpus, link_words
from backend.job.job import Job
from backend.job.mapping import to_mapping, with_values
from backend.job.presets import READING, gpus
from backend.job.problems import Problem
from backend.jobs.look import NodeMemory

COLUMNS = ("node", "gpus", "links", "busy", "driver", "software", "host", "disk", "ports", "interfaces")
NVLINK_GB_PER_S = 50
"""A link, both directions, from NVLink 2 to 4; presets/clusters.yaml counts 12 on an A100, 18 on an H100. NVLink 5,
which Blackwell has, is twice as fast."""
GIB = 1 << 30
PCIE_GB_PER_S = {"3": 31, "4": 62, "5": 126}
"""x16, both directions, by generation (presets/gpus.yaml says where from)."""


def hardware_edits(job: Job, found: Mapping[int, NodeMemory]) -> dict[str, Any]:
    """What the nodes tell of `cluster`, except of its hosts; nothing that they do not agree on or do not tell."""
    edits: dict[str, Any] = {"cluster.host_memory_gib": round(min(one.host_gib for one in found.values()), 1)}
    if len(found) == len(job.cluster.hosts):
        edits["cluster.nodes"] = len(found)
    nodes = [one.survey for one in found.values()]
    if all(one.gpus.usable for one in nodes):
        edits["cluster.gpus_per_node"] = min(len(one.gpus.usable) for one in nodes)
        presets = {preset_of(one.gpus) for one in nodes}
        if len(presets) == 1 and (preset := presets.pop()):
            edits["cluster.gpu"] = preset
        inside = {intra_node(one.gpus) for one in nodes}
        if len(inside) == 1 and (speed := inside.pop()):
            edits["cluster.intra_node_gb_per_s"] = speed
    ports = [one.fabric.used_ports for one in nodes]
    if all(ports):
        edits["cluster.nics_per_node"] = min(map(len, ports))
        edits["cluster.inter_node_gbit_per_s"] = min(port.rate_gbit for own in ports for port in own)
    return {path: value for path, value in edits.items() if value != _now(job, path)}


def _now(job: Job, path: str) -> Any:
    return getattr(job.cluster, path.partition(".")[2])


def preset_of(found: Gpus) -> str | None:
    """The key of presets/gpus.yaml that a node's GPUs are; None for others, and for different ones in a node."""
    names = {(gpu.name, gpu.memory_mib) for gpu in found.usable}
    if len(names) != 1:
        return None
    name, memory = names.pop()
    fits = [
        key
        for key, preset in gpus().items()
        if memory is not None
        and (1 - READING) * memory / 1024 <= preset.memory_gib <= memory / 1024
        and re.search(rf"\b{re.escape(_model(preset.name))}\b", name)
        and not ("SXM" in preset.name and re.search("PCIe|NVL", name, re.IGNORECASE))
    ]
    return fits[0] if len(fits) == 1 else None


def _model(name: str) -> str:
    """`H100` of `H100 80 GB SXM`."""
    return re.split(r" \d+ GB", name)[0]


def intra_node(found: Gpus) -> float | None:
    """GB/s per GPU, both directions; None where pairs differ or nothing is told."""
    if len(found.links) != 1:
        return None
    if count := re.fullmatch(r"NV(\d+)", found.links[0]):
        is_blackwell = all(re.search(r"\bG?B[23]\d0\b", gpu.name) for gpu in found.usable)
        return float(int(count[1]) * NVLINK_GB_PER_S * (2 if is_blackwell else 1))
    lanes = {gpu.pcie for gpu in found.usable}
    generation = re.fullmatch(r"(\d)\.0 x16", lanes.pop()) if len(lanes) == 1 else None
    speed = PCIE_GB_PER_S.get(generation[1]) if generation else None
    return float(speed) if speed else None


def proposals(job: Job, found: Mapping[int, NodeMemory], hosts: Any = None) -> list[Problem]:
    """Notes with an edit each: the faster network that all nodes share, and the ports that NCCL should use.

    `hosts`: as the draft writes them; without it the job's.
    """
    notes = []
    hosts = to_mapping(job)["cluster"].get("hosts") if hosts is None else hosts
    if by_name := proposed_addresses(job, found):
        edit = {"cluster.hosts": with_fabric(to_form(hosts), by_name)}
        values = {"addresses": ", ".join(f"{name}: {address}" for name, address in by_name.items())}
        notes.append(Problem(code="fabric_proposed", field="cluster.hosts", severity="note", values=values, edit=edit))
    if variables := proposed_variables(job, found):
        text = " ".join(f"{name}={value}" for name, value in variables.items())
        edit = {"environment": {**job.environment, **variables}}
        notes.append(
            Problem(code="nccl_proposed", field="environment", severity="note", values={"variables": text}, edit=edit)
        )
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
    """A row a node, under titles."""
    head = [t(lang, f"wizard.found.{name}") for name in COLUMNS]
    return {"head": head, "rows": [_row(job, rank, one, lang) for rank, one in found.items()]}


def _row(job: Job, rank: int, one: NodeMemory, lang: str) -> list[str]:
    gpus, fabric = one.survey.gpus, one.survey.fabric
    first = gpus.gpus[0] if gpus.gpus else None
    names = sorted({gpu.name for gpu in gpus.gpus})
    kinds = f"{len(gpus.usable)} × {' / '.join(names)}" if names else t(lang, "wizard.found.cpu_node")
    busy = [
        f"GPU {gpu.index}: {gpu.memory_used_mib / 1024:.1f} GiB"
        for gpu in gpus.gpus
        if (gpu.memory_used_mib or 0) > 1024
    ]
    users = sorted({process.user for process in gpus.processes if process.user})
    ports = [f"{port.name} {'IB' if port.is_infiniband else 'RoCE'} {port.rate_gbit:g} Gbit/s {port.state}"
             + (f" GID {port.gid_index}" if port.gid_index is not None else "") for port in fabric.ports]  # fmt: skip
    return [
        job.cluster.hosts[rank].name,
        f"{kinds} ({gpus.trouble})" if gpus.trouble else kinds,
        " · ".join(filter(None, (link_words(gpus.links), f"PCIe {first.pcie}" if first and first.pcie else ""))) or "–",
        "; ".join(busy + users) or "–",
        f"{first.driver} · CUDA {gpus.cuda or '–'}" if first else "–",
        _software(one),
        _host(one),
        ", ".join(
            f"{disk.free / GIB:.0f} / {disk.total / GIB:.0f} GiB {disk.kind}" for disk in one.survey.disks.values()
        )
        or "–",
        "; ".join(ports) or "–",
        "; ".join(_interface(job, one, way, lang) for way in fabric.interfaces) or "–",
    ]


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
