"""Checks of one node's machine besides its GPUs, and of the clocks of all nodes."""

from statistics import median

from backend.cluster.preflight.readings import GangReadings, NodeReadings
from backend.cluster.preflight.results import CheckResult
from backend.estimate.memory.checkpoint_size import checkpoint_bytes
from backend.job.job import Job
from backend.job.presets import resolve_gpu
from backend.job.problems import Problem

SHM_GIB = 1.0
"""Docker's default is 0.0625 GiB. Data loaders, and NCCL between GPUs without a direct connection, need more."""
NOFILE = 1024
CLOCK_S = 5.0
GIB = 1 << 30


def check_limits(node: NodeReadings) -> list[CheckResult]:
    """Check that /dev/shm and the limits of processes are large enough for training on GPUs."""
    job, checks, hardware = node.job, node.checks, node.hardware
    if resolve_gpu(job.cluster).device == "cpu" or not hardware.gpus.usable:
        return []
    results = []
    if hardware.shm is not None and hardware.shm < SHM_GIB * GIB:
        results.append(checks.warning("shm", "shm_small", checks.address_field, mib=hardware.shm >> 20))
    else:
        results.append(checks.ok("shm", mib=hardware.shm >> 20 if hardware.shm is not None else None))
    if hardware.memlock is not None and hardware.fabric.used_ports and job.cluster.nodes > 1:
        command = "printf '* %s memlock unlimited\\n' soft hard | sudo tee /etc/security/limits.d/90-memlock.conf"
        values = {"kib": hardware.memlock >> 10, "command": command}
        results.append(checks.warning("limits", "memlock_low", checks.address_field, **values))
    elif hardware.nofile is not None and hardware.nofile < NOFILE:
        command = "printf '* %s nofile 65536\\n' soft hard | sudo tee /etc/security/limits.d/90-nofile.conf"
        values = {"count": hardware.nofile, "command": command}
        results.append(checks.warning("limits", "nofile_low", checks.address_field, **values))
    else:
        results.append(checks.ok("limits", memlock=hardware.memlock, nofile=hardware.nofile))
    return results


def check_logout(node: NodeReadings) -> list[CheckResult]:
    """Warn where the node ends a run when the server's connection ends."""
    if not node.hardware.ends_at_logout:
        return []
    text = "[Login]\\nKillUserProcesses=no\\n"
    folder = "/etc/systemd/logind.conf.d"
    command = f"sudo mkdir -p {folder} && printf '{text}' | sudo tee {folder}/megaboard.conf"
    return [node.checks.warning("logout", "ends_at_logout", node.checks.address_field, command=command)]


def check_space(node: NodeReadings) -> list[CheckResult]:
    """Check that output_dir has room for two checkpoints: the old one is deleted after the new one is complete.

    A node that writes no checkpoint has no such check. A job whose checkpoint cannot be estimated gets a note instead.
    """
    job, checks = node.job, node.checks
    disk, checkpoint = node.hardware.disks.get(str(job.training.output_dir)), _own_share(job, checks.rank)
    if disk is None or checkpoint == 0:
        return []
    if checkpoint is None:
        values = {"node": checks.node, "path": job.training.output_dir}
        note = Problem(
            code="space_unknown", field="training.output_dir", severity="note", node=checks.node, values=values
        )
        return [checks.skipped("space", note)]
    if disk.free >= 2 * checkpoint:
        return [checks.ok("space", free_gib=round(disk.free / GIB, 1), checkpoint_gib=round(checkpoint / GIB, 1))]
    values = {"free": f"{disk.free / GIB:.1f}", "one": f"{checkpoint / GIB:.1f}", "path": job.training.output_dir}
    if disk.free < checkpoint:
        return [checks.wrong("space", "no_space", "training.output_dir", **values)]
    return [checks.warning("space", "space_for_one", "training.output_dir", **values)]


def _own_share(job: Job, rank: int) -> int | None:
    """Return the bytes of a checkpoint that a node writes; None if they cannot be estimated.

    Rank 0 writes the whole file with the plain engine and with FSDP (engines/llamafactory_fsdp.py asks for whole
    files). With the other engines the nodes divide it.
    """
    whole, traits = checkpoint_bytes(job), job.traits
    divides = bool(traits.is_megatron or traits.zero_stage)
    if rank and not divides:
        return 0
    return whole // job.cluster.nodes if rank and whole is not None else whole


def check_clocks(gang: GangReadings) -> list[CheckResult]:
    """Check that the clocks agree. A node may differ by the time that the question took."""
    if len(gang.facts) < 2:
        return []
    offsets = [fact.clock_offset_s for fact in gang.facts.values()]
    # With two nodes the wrong clock is unknown, so the second is compared with the first.
    usual = median(offsets) if len(offsets) > 2 else offsets[0]
    results = []
    for rank, fact in gang.facts.items():
        checks = gang.checks[rank]
        off = fact.clock_offset_s - usual
        if abs(off) - fact.clock_error_s > CLOCK_S:
            values = {
                "seconds": f"{off:+.0f}",
                "command": "sudo chronyc makestep || sudo systemctl restart systemd-timesyncd",
            }
            results.append(checks.warning("clock", "clock_off", checks.address_field, **values))
        else:
            results.append(checks.ok("clock", off_s=round(off, 2)))
    return results
