"""Edits of the draft from the hardware that the nodes report, and proposals that the user may accept."""

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
"""Speed of one link, both directions, from NVLink 2 to 4. NVLink 5 (Blackwell) is twice as fast.
An A100 has 12 links and an H100 has 18 (presets/clusters.yaml)."""
PCIE_GB_PER_S = {"3": 31, "4": 62, "5": 126}
"""Speed of x16, both directions, by generation. presets/gpus.yaml names the source."""


def hardware_edits(job: Job, memories: Mapping[int, NodeMemory]) -> dict[str, Any]:
    """Return the edits of `cluster` that all nodes agree on, without its hosts."""
    edits: dict[str, Any] = {"cluster.host_memory_gib": round(min(memory.host_gib for memory in memories.values()), 1)}
    if len(memories) == len(job.cluster.hosts):
        edits["cluster.nodes"] = len(memories)
    nodes = [memory.hardware for memory in memories.values()]
    if all(node.gpus.usable for node in nodes):
        edits["cluster.gpus_per_node"] = min(len(node.gpus.usable) for node in nodes)
        presets = {preset_of(node.gpus) for node in nodes}
        if len(presets) == 1 and (preset := presets.pop()):
            edits["cluster.gpu"] = preset
        speeds = {intra_node(node.gpus) for node in nodes}
        if len(speeds) == 1 and (speed := speeds.pop()):
            edits["cluster.intra_node_gb_per_s"] = speed
    node_ports = [node.fabric.used_ports for node in nodes]
    if all(node_ports):
        edits["cluster.nics_per_node"] = min(map(len, node_ports))
        edits["cluster.inter_node_gbit_per_s"] = min(port.rate_gbit for ports in node_ports for port in ports)
    return {path: value for path, value in edits.items() if value != _current(job, path)}


def _current(job: Job, path: str) -> Any:
    return getattr(job.cluster, path.partition(".")[2])


def preset_of(node_gpus: Gpus) -> str | None:
    """Return the key of the preset of a node's GPUs. None for unknown GPUs, or if the GPUs differ."""
    names = {(gpu.name, gpu.memory_mib) for gpu in node_gpus.usable}
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
    """Return `H100` of `H100 80 GB SXM`."""
    return re.split(r" \d+ GB", name)[0]


def intra_node(node_gpus: Gpus) -> float | None:
    """Return GB/s per GPU, both directions. None if pairs of GPUs differ or the node does not report links."""
    if len(node_gpus.links) != 1:
        return None
    if count := re.fullmatch(r"NV(\d+)", node_gpus.links[0]):
        is_blackwell = all(re.search(r"\bG?B[23]\d0\b", gpu.name) for gpu in node_gpus.usable)
        return float(int(count[1]) * NVLINK_GB_PER_S * (2 if is_blackwell else 1))
    lanes = {gpu.pcie for gpu in node_gpus.usable}
    generation = re.fullmatch(r"(\d)\.0 x16", lanes.pop()) if len(lanes) == 1 else None
    speed = PCIE_GB_PER_S.get(generation[1]) if generation else None
    return float(speed) if speed else None


def power_notes(job: Job, memories: Mapping[int, NodeMemory], gpu: str | Mapping[str, Any]) -> list[Problem]:
    """Return a note that names the nodes whose power limit is below the one that the estimate assumes for `gpu`.

    Empty if the estimate uses the measured speed of the cluster.
    """
    cluster = replace(job.cluster, gpu=gpu)
    preset = named_gpu(cluster)
    machine, known = machine_of(cluster, preset), cluster.calibration
    if preset.power_w is None or machine is None or machine.warm or (known.time_ratio and known.holds_for(gpu)):
        return []
    limits = {
        rank: [gpu.power_w for gpu in node.hardware.gpus.usable if gpu.power_w] for rank, node in memories.items()
    }
    lowered = {rank: min(watts) for rank, watts in limits.items() if watts and min(watts) < preset.power_w}
    if not lowered:
        return []
    lowest, efficiency = min(lowered.values()), default_efficiency()
    share = 1 - efficiency.sustained(replace(machine, power=lowest)) / efficiency.sustained(machine)
    nodes = ", ".join(job.cluster.hosts[rank].name for rank in lowered)
    values = {"nodes": nodes, "watts": lowest, "counted": round(preset.power_w), "gpu": preset.name}
    values["share"] = round(100 * float(share))
    return [Problem(code="gpu_power_less", field="cluster.gpu", severity="note", values=values)]


def proposals(job: Job, memories: Mapping[int, NodeMemory], hosts: Any) -> list[Problem]:
    """Return the notes, each with its edit. `hosts` has the form of the draft."""
    edits = {
        "cluster.hosts": with_fabric(to_form(hosts), proposed_addresses(job, memories)),
        "environment": {**job.environment, **proposed_variables(job, memories)},
    }
    return [replace(note, edit={str(note.field): edits[str(note.field)]}) for note in proposal_notes(job, memories)]
