"""Checks of the network between the nodes: interfaces, and InfiniBand or RoCE ports."""

from backend.cluster.inventory.fabric import is_inside, is_tunnel, matching_names
from backend.cluster.inventory.hardware import Hardware
from backend.cluster.preflight.readings import GangReadings
from backend.cluster.preflight.results import CheckResult
from backend.job.job import Job


def check_interfaces(gang: GangReadings) -> list[CheckResult]:
    """Check that each node's route to the master leaves the node, and that it has the interfaces that the job names.

    `lo` is right for nodes that are one machine.
    """
    if len(gang.facts) < 2:
        return []
    machines = {fact.machine for fact in gang.facts.values()}
    results = []
    for rank, fact in gang.facts.items():
        name, checks = fact.interface, gang.checks[rank]
        if wrong := _missing_interface(gang.job, gang.hardware.get(rank)):
            results.append(checks.wrong("interface", "interface_missing", f"environment.{wrong['variable']}", **wrong))
        elif name is None:
            # The master_port check reports why.
            results.append(checks.skipped("interface"))
        elif is_inside(name) and (len(machines) > 1 or "" in machines):
            results.append(
                checks.wrong("interface", "internal_interface", "cluster.hosts[0].fabric_address", interface=name)
            )
        elif is_tunnel(name):
            results.append(
                checks.warning("interface", "tunnel_interface", "cluster.hosts[0].fabric_address", interface=name)
            )
        else:
            results.append(checks.ok("interface", interface=name))
    return results


def _missing_interface(job: Job, hardware: Hardware | None) -> dict[str, object] | None:
    """Return the job's variable that matches no interface or active port of a node."""
    if hardware is None:
        return None
    names = hardware.fabric.names
    ports = [port.name for port in hardware.fabric.ports if port.is_active]
    for variable, present in (("NCCL_SOCKET_IFNAME", names), ("GLOO_SOCKET_IFNAME", names), ("NCCL_IB_HCA", ports)):
        wanted = job.environment.get(variable, "")
        # gloo takes exact names, NCCL takes prefixes.
        pattern = f"={wanted}" if variable.startswith("GLOO") else wanted
        if wanted and not matching_names(pattern, present):
            return {"variable": variable, "value": wanted, "there": ", ".join(present) or "-"}
    return None


def check_rdma(gang: GangReadings) -> list[CheckResult]:
    """Check that all nodes have the same number of active InfiniBand or RoCE ports, where any node has some."""
    best = max((len(machine.fabric.used_ports) for machine in gang.hardware.values()), default=0)
    if best == 0 or gang.job.cluster.nodes < 2:
        return []
    results = []
    for rank, machine in gang.hardware.items():
        checks, used = gang.checks[rank], machine.fabric.used_ports
        if len(used) < best:
            down = [f"{port.name} {port.state}" for port in machine.fabric.ports if not port.is_active]
            values = {"count": len(used), "best": best, "down": ", ".join(down) or "-"}
            results.append(checks.warning("rdma", "rdma_fewer", checks.address_field, **values))
        else:
            results.append(
                checks.ok(
                    "rdma",
                    ports=" ".join(port.name for port in used),
                    rate=used[0].rate_gbit,
                    gid_index=machine.fabric.gid_index,
                )
            )
    return results
