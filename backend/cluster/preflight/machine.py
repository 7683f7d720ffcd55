"""The checks of one node's machine: pure, from its survey and its facts."""

from collections.abc import Mapping, Sequence
from statistics import median

from backend.cluster.inventory.fabric import is_inside, is_tunnel, takes
from backend.cluster.inventory.gpus import BUSY_MIB, Gpu, Gpus, link_words
from backend.cluster.inventory.hardware import Survey
from backend.cluster.inventory.software import NodeFacts, python_field
from backend.cluster.preflight.fix_commands import pip_command
from backend.cluster.preflight.results import CheckResult, Checks
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.presets import resolve_gpu

SHM_GIB = 1.0
"""Docker gives 0.0625; NCCL's buffers between GPUs without a direct way, and data loaders, need more."""
NOFILE = 1024
CLOCK_S = 5.0
_BUILDS = {(13, 0): "cu130", (12, 8): "cu128", (12, 6): "cu126"}
"""The driver's CUDA -> the name of torch's builds for it, https://pytorch.org/get-started/previous-versions/."""
GIB = 1 << 30


def check_gpus(job: Job, checks: Checks, found: Gpus) -> list[CheckResult]:
    """Whether as many sound, whole GPUs are there as the plan has ranks on a node; nothing for a plan on CPUs."""
    if resolve_gpu(job.cluster).device == "cpu":
        return []
    wanted = job.cluster.gpus_per_node
    if not found.is_nvidia:
        return [checks.warning("gpus", "no_nvidia_smi", "cluster.gpu", wanted=wanted)]
    faulty = [gpu for gpu in found.gpus if gpu.fault]
    if faulty:
        said = ", ".join(f"GPU {gpu.index}: {gpu.fault}" for gpu in faulty)
        return [checks.wrong("gpus", "gpu_lost", _address(checks), said=said, command=_reset(faulty))]
    if len(found.gpus) < wanted and found.trouble:
        return [checks.wrong("gpus", "gpu_lost", _address(checks), said=found.trouble, command="sudo reboot")]
    if len(found.gpus) < wanted:
        return [checks.wrong("gpus", "too_few_gpus", "cluster.gpus_per_node", found=len(found.gpus), wanted=wanted)]
    divided = [str(gpu.index) for gpu in found.gpus[:wanted] if gpu.is_divided]
    if divided:
        command = f"sudo nvidia-smi -i {','.join(divided)} -mig 0"
        return [checks.wrong("gpus", "gpu_divided", _address(checks), gpus=divided, command=command)]
    return [_sound(checks, found, found.gpus[:wanted]), _free(job, checks, found)]


def _sound(checks: Checks, found: Gpus, used: Sequence[Gpu]) -> CheckResult:
    """Whether their memory is sound and they may draw what they are made for, as far as they tell; the gravest alone.

    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
    """
    field = _address(checks)
    if failed := [str(gpu.index) for gpu in used if gpu.rows_failed]:
        return checks.warning("gpus", "gpu_rows_failed", field, gpus=failed)
    if wrong := [gpu for gpu in used if gpu.ecc_errors]:
        said = ", ".join(f"GPU {gpu.index}: {gpu.ecc_errors}" for gpu in wrong)
        return checks.warning("gpus", "gpu_ecc_errors", field, said=said, command=_reset(wrong))
    if pending := [gpu for gpu in used if gpu.rows_pending]:
        gpus = [str(gpu.index) for gpu in pending]
        return checks.warning("gpus", "gpu_rows_pending", field, gpus=gpus, command=_reset(pending))
    if held := [gpu for gpu in used if gpu.is_held]:
        said = ", ".join(f"GPU {gpu.index}: {gpu.power_w} / {gpu.default_power_w} W" for gpu in held)
        indices = ",".join(str(gpu.index) for gpu in held)
        command = f"sudo nvidia-smi -i {indices} -pl {max(gpu.default_power_w or 0 for gpu in held)}"
        return checks.warning("gpus", "gpu_power_held", field, said=said, command=command)
    return checks.ok("gpus", gpus=len(found.gpus), model=found.gpus[0].name, links=link_words(found.links))


def _reset(gpus: Sequence[Gpu]) -> str:
    return f"sudo nvidia-smi --gpu-reset -i {','.join(str(gpu.index) for gpu in gpus)}"


def _free(job: Job, checks: Checks, found: Gpus) -> CheckResult:
    """Whether nobody computes on them."""
    busy = [gpu for gpu in found.gpus[: job.cluster.gpus_per_node] if _used_mib(gpu, found) > BUSY_MIB]
    if not busy:
        return checks.ok("gpus_free")
    used = ", ".join(f"GPU {gpu.index}: {_used_mib(gpu, found) / 1024:.1f} GiB" for gpu in busy)
    indices = {gpu.index for gpu in busy}
    known = [one for one in found.processes if one.gpu in indices]
    who = sorted({f"{one.user or '?'}: {one.name or '?'} (pid {one.pid})" for one in known})
    code = "gpus_busy" if who else "gpus_busy_hidden"
    return checks.warning("gpus_free", code, _address(checks), used=used, who=", ".join(who))


def _used_mib(gpu: Gpu, found: Gpus) -> int:
    """Of a GPU that does not tell, what its processes hold."""
    if gpu.memory_used_mib is not None:
        return gpu.memory_used_mib
    return sum(one.memory_mib or 0 for one in found.processes if one.gpu == gpu.index)


def check_cuda(job: Job, checks: Checks, facts: NodeFacts, found: Gpus) -> list[CheckResult]:
    """Whether this torch can use these GPUs: built with CUDA, and with none newer than the driver takes.

    Within one major version any driver does (https://docs.nvidia.com/deploy/cuda-compatibility/).
    """
    if resolve_gpu(job.cluster).device == "cpu" or not found.usable or facts.cuda is None:
        return []
    if facts.cuda == "":
        values = {"torch": facts.modules.get("torch"), "command": _cuda_build(job, checks.rank, facts, found)}
        return [checks.wrong("cuda", "torch_without_cuda", python_field(job, checks.rank), **values)]
    if found.cuda and _major(facts.cuda) > _major(found.cuda):
        values = {"cuda": facts.cuda, "driver": found.gpus[0].driver, "newest": found.cuda}
        return [checks.wrong("cuda", "driver_too_old", _address(checks), **values)]
    return [checks.ok("cuda", cuda=facts.cuda, nccl=facts.nccl, driver=found.gpus[0].driver)]


def _cuda_build(job: Job, rank: int, facts: NodeFacts, found: Gpus) -> str:
    """What installs the same torch for the newest CUDA that the driver takes and torch's index has."""
    newest = tuple(int(part) for part in (found.cuda or "12.8").split("."))
    name = next((name for least, name in _BUILDS.items() if newest >= least), "cu118")
    version = (facts.modules.get("torch") or "").partition("+")[0]
    index = ["--extra-index-url", f"https://download.pytorch.org/whl/{name}"]
    return pip_command(environment_of(job, rank), [*index, f"torch=={version}+{name}"])


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def check_room(job: Job, checks: Checks, found: Survey) -> list[CheckResult]:
    """Whether /dev/shm and the limits of processes are no smaller than training on GPUs needs."""
    if resolve_gpu(job.cluster).device == "cpu" or not found.gpus.usable:
        return []
    results = []
    if found.shm is not None and found.shm < SHM_GIB * GIB:
        results.append(checks.warning("shm", "shm_small", _address(checks), mib=found.shm >> 20))
    else:
        results.append(checks.ok("shm", mib=found.shm >> 20 if found.shm is not None else None))
    if found.memlock is not None and found.fabric.used_ports and job.cluster.nodes > 1:
        command = "printf '* %s memlock unlimited\\n' soft hard | sudo tee /etc/security/limits.d/90-memlock.conf"
        values = {"kib": found.memlock >> 10, "command": command}
        results.append(checks.warning("limits", "memlock_low", _address(checks), **values))
    elif found.nofile is not None and found.nofile < NOFILE:
        command = "printf '* %s nofile 65536\\n' soft hard | sudo tee /etc/security/limits.d/90-nofile.conf"
        results.append(checks.warning("limits", "nofile_low", _address(checks), count=found.nofile, command=command))
    else:
        results.append(checks.ok("limits", memlock=found.memlock, nofile=found.nofile))
    return results


def check_logout(checks: Checks, found: Survey) -> list[CheckResult]:
    """Nothing unless the node ends a run when the server's connection to it ends."""
    if not found.ends_at_logout:
        return []
    text = "[Login]\\nKillUserProcesses=no\\n"
    folder = "/etc/systemd/logind.conf.d"
    command = f"sudo mkdir -p {folder} && printf '{text}' | sudo tee {folder}/megaboard.conf"
    return [checks.warning("logout", "ends_at_logout", _address(checks), command=command)]


def check_space(job: Job, checks: Checks, found: Survey, checkpoint: int | None) -> list[CheckResult]:
    """Whether output_dir has room for two checkpoints, each of so many bytes: the old one goes when the new one stands.

    Nothing where their size cannot be estimated, or for a node that writes none.
    """
    disk = found.disks.get(str(job.training.output_dir))
    if disk is None or checkpoint is None:
        return []
    if disk.free >= 2 * checkpoint:
        return [checks.ok("space", free_gib=round(disk.free / GIB, 1), checkpoint_gib=round(checkpoint / GIB, 1))]
    values = {"free": f"{disk.free / GIB:.1f}", "one": f"{checkpoint / GIB:.1f}", "path": job.training.output_dir}
    if disk.free < checkpoint:
        return [checks.wrong("space", "no_space", "training.output_dir", **values)]
    return [checks.warning("space", "space_for_one", "training.output_dir", **values)]


def check_clocks(checks: Mapping[int, Checks], facts: Mapping[int, NodeFacts]) -> list[CheckResult]:
    """Whether the nodes' clocks agree: a node that is off beyond what the question's own time explains is named."""
    if len(facts) < 2:
        return []
    offsets = [fact.clock_offset_s for fact in facts.values()]
    # Of two nobody can say which is off: the second is compared with the first.
    usual = median(offsets) if len(offsets) > 2 else offsets[0]
    results = []
    for rank, fact in facts.items():
        off = fact.clock_offset_s - usual
        if abs(off) - fact.clock_error_s > CLOCK_S:
            values = {
                "seconds": f"{off:+.0f}",
                "command": "sudo chronyc makestep || sudo systemctl restart systemd-timesyncd",
            }
            results.append(checks[rank].warning("clock", "clock_off", _address(checks[rank]), **values))
        else:
            results.append(checks[rank].ok("clock", off_s=round(off, 2)))
    return results


def check_interfaces(
    job: Job, checks: Mapping[int, Checks], facts: Mapping[int, NodeFacts], found: Mapping[int, Survey]
) -> list[CheckResult]:
    """Whether each node's way to the master leaves the node, and whether it has the interfaces that the job names.

    `lo` is right for nodes that are one machine.
    """
    if len(facts) < 2:
        return []
    machines = {fact.machine for fact in facts.values()}
    results = []
    for rank, fact in facts.items():
        name, of = fact.interface, checks[rank]
        if wrong := _not_there(job, found.get(rank)):
            results.append(of.wrong("interface", "interface_missing", f"environment.{wrong['variable']}", **wrong))
        elif name is None:
            # The dialling says why.
            results.append(of.skipped("interface"))
        elif is_inside(name) and (len(machines) > 1 or "" in machines):
            results.append(
                of.wrong("interface", "internal_interface", "cluster.hosts[0].fabric_address", interface=name)
            )
        elif is_tunnel(name):
            results.append(
                of.warning("interface", "tunnel_interface", "cluster.hosts[0].fabric_address", interface=name)
            )
        else:
            results.append(of.ok("interface", interface=name))
    return results


def _not_there(job: Job, found: Survey | None) -> dict[str, object] | None:
    """The job's own variable that fits no interface or active port of a node."""
    if found is None:
        return None
    names = found.fabric.names
    ports = [port.name for port in found.fabric.ports if port.is_active]
    for variable, there in (("NCCL_SOCKET_IFNAME", names), ("GLOO_SOCKET_IFNAME", names), ("NCCL_IB_HCA", ports)):
        wanted = job.environment.get(variable, "")
        # gloo takes names as they are.
        asked = f"={wanted}" if variable.startswith("GLOO") else wanted
        if wanted and not takes(asked, there):
            return {"variable": variable, "value": wanted, "there": ", ".join(there) or "-"}
    return None


def check_rdma(checks: Mapping[int, Checks], found: Mapping[int, Survey]) -> list[CheckResult]:
    """Whether all nodes have as many active InfiniBand or RoCE ports as the best of them; nothing without any."""
    best = max((len(one.fabric.used_ports) for one in found.values()), default=0)
    if best == 0:
        return []
    results = []
    for rank, one in found.items():
        of, used = checks[rank], one.fabric.used_ports
        if len(used) < best:
            down = [f"{port.name} {port.state}" for port in one.fabric.ports if not port.is_active]
            values = {"count": len(used), "best": best, "down": ", ".join(down) or "-"}
            results.append(of.warning("rdma", "rdma_fewer", _address(of), **values))
        else:
            results.append(
                of.ok(
                    "rdma",
                    ports=" ".join(port.name for port in used),
                    rate=used[0].rate_gbit,
                    gid_index=one.fabric.gid_index,
                )
            )
    return results


def _address(checks: Checks) -> str:
    return f"cluster.hosts[{checks.rank}].address"
