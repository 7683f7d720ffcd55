"""What the nodes' own tools say of them, as edits of the draft, and as proposals to be taken."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.text.detected import proposal_notes, proposed_addresses, proposed_variables
from app.wizard.hosts import to_form, with_fabric
from backend.cluster.inventory.gpus import Gpus
from backend.estimate.time.efficiency import default_efficiency, machine_of
from backend.job.job import Job
from backend.job.presets import READING, gpus, named_gpu
from backend.job.problems import Problem
from backend.runs.api import NodeMemory

NVLINK_GB_PER_S = 50
"""A link, both directions, from NVLink 2 to 4; presets/clusters.yaml counts 12 on an A100, 18 on an H100. NVLink 5,
which Blackwell has, is twice as fast."""
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


def power_notes(job: Job, found: Mapping[int, NodeMemory], gpu: str | Mapping[str, Any]) -> list[Problem]:
    """Which nodes' GPUs may draw less than an estimate for this `cluster.gpu` counts on; nothing once the cluster's own
    speed counts.
    """
    cluster = replace(job.cluster, gpu=gpu)
    preset = named_gpu(cluster)
    machine, known = machine_of(cluster, preset), cluster.calibration
    if preset.power_w is None or machine is None or machine.warm or (known.time_ratio and known.holds_for(gpu)):
        return []
    limits = {rank: [one.power_w for one in node.survey.gpus.usable if one.power_w] for rank, node in found.items()}
    held = {rank: min(watts) for rank, watts in limits.items() if watts and min(watts) < preset.power_w}
    if not held:
        return []
    least, efficiency = min(held.values()), default_efficiency()
    share = 1 - efficiency.sustained(replace(machine, power=least)) / efficiency.sustained(machine)
    nodes = ", ".join(job.cluster.hosts[rank].name for rank in held)
    values = {"nodes": nodes, "watts": least, "counted": round(preset.power_w), "gpu": preset.name}
    values["share"] = round(100 * float(share))
    return [Problem(code="gpu_power_less", field="cluster.gpu", severity="note", values=values)]


def proposals(job: Job, found: Mapping[int, NodeMemory], hosts: Any) -> list[Problem]:
    """The notes with an edit each; `hosts` as the draft writes them."""
    edits = {
        "cluster.hosts": with_fabric(to_form(hosts), proposed_addresses(job, found)),
        "environment": {**job.environment, **proposed_variables(job, found)},
    }
    return [replace(note, edit={str(note.field): edits[str(note.field)]}) for note in proposal_notes(job, found)]
