"""A node's network from /sys: RDMA ports, interfaces, and the NCCL variables for them."""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.cluster.program_answers.hardware import InterfaceAnswer, RdmaAnswer

_INSIDE = re.compile(
    r"lo$|docker|br-[0-9a-f]{8}|virbr|vnet|veth|cni|flannel|cali|cilium|lxc|podman|kube|nodelocal|ifb|dummy"
)
"""Names of interfaces that stay inside a node: ranks on other nodes cannot be reached over them."""
_TUNNEL = re.compile(r"tailscale|wg|tun|tap|zt|utun|idrac|usb|bmc")
"""Names of tunnels and of management ports: slow, and not meant for training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RdmaPort:
    """A port of an InfiniBand or RoCE device."""

    device: str
    port: int
    is_active: bool
    state: str
    """The kernel's name: ACTIVE, DOWN, INIT."""
    is_infiniband: bool
    rate_gbit: float
    gid_index: int | None = None
    """Index of RoCE v2's entry with a routed address. None without such an entry."""
    interfaces: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the port's name in NCCL_IB_HCA."""
        return f"{self.device}:{self.port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """A network interface that may reach other nodes."""

    name: str
    gbit: float | None
    """None where the kernel does not report it, as in a virtual machine."""
    networks: tuple[str, ...]
    """`address/prefix`."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses without the prefix."""
        return tuple(network.partition("/")[0] for network in self.networks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """Network of one node."""

    ports: tuple[RdmaPort, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    """Interfaces that are up, have an address and leave the node."""
    default_routes: tuple[str, ...] = ()
    """Interfaces, the preferred one first."""
    names: tuple[str, ...] = ()
    """Names of all interfaces that are up, also of those inside the node."""

    @property
    def used_ports(self) -> tuple[RdmaPort, ...]:
        """Return the ports for training: the fastest active ports of one kind.

        Slower ports (storage, management) delay the others, and InfiniBand and RoCE ports cannot be connected.
        """
        able = [port for port in self.ports if port.is_active and (port.is_infiniband or port.gid_index is not None)]
        kinds = [[port for port in able if port.is_infiniband == kind] for kind in (True, False)]
        best = max(kinds, key=lambda ports: sum(port.rate_gbit for port in ports))
        fastest = max((port.rate_gbit for port in best), default=0)
        return tuple(port for port in best if port.rate_gbit == fastest)

    @property
    def hca(self) -> str:
        """Return NCCL_IB_HCA for the used ports, by exact names. It is empty without any."""
        return "=" + ",".join(port.name for port in self.used_ports) if self.used_ports else ""

    @property
    def gid_index(self) -> int | None:
        """Return NCCL_IB_GID_INDEX. None on InfiniBand and where ports differ: NCCL finds the index itself."""
        indices = {port.gid_index for port in self.used_ports if not port.is_infiniband}
        return indices.pop() if len(indices) == 1 else None


def read_fabric(rdma: Iterable[RdmaAnswer], interfaces: Sequence[InterfaceAnswer], routes: Sequence[str]) -> Fabric:
    """Parse hardware.py's answers. Raises ValueError if an address is invalid."""
    ports = tuple(_port(answer) for answer in rdma)
    rates = {name: port.rate_gbit for port in ports for name in port.interfaces}
    return Fabric(
        ports=ports,
        interfaces=tuple(_interface(answer, rates) for answer in interfaces if _leaves_node(answer)),
        default_routes=tuple(routes),
        names=tuple(answer["name"] for answer in interfaces if answer["state"] in ("up", "unknown")),
    )


def matching_names(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match an NCCL variable: prefixes with commas, exact names after `=`, exclusions after `^`.

    `device` matches each of its ports. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    exact, excluded = "=" in pattern[:2], pattern.startswith("^")
    words = pattern.lstrip("^=").split(",")

    def fits(name: str) -> bool:
        return any(name == word or name.partition(":")[0] == word if exact else name.startswith(word) for word in words)

    return [name for name in names if fits(name) != excluded]


def is_inside(name: str) -> bool:
    """Return whether an interface of this name stays inside a node."""
    return _INSIDE.match(name) is not None


def is_tunnel(name: str) -> bool:
    """Return whether this is the name of a tunnel or a management port."""
    return _TUNNEL.match(name) is not None


def common_network(fabrics: Mapping[int, Fabric]) -> dict[int, str]:
    """Return each rank's address in the fastest network that all nodes share. Empty without such a network."""
    shared: dict[Any, dict[int, tuple[float, str]]] = {}
    for rank, fabric in fabrics.items():
        for interface in fabric.interfaces:
            for text in interface.networks:
                network = ipaddress.ip_interface(text)
                if network.network.prefixlen < network.max_prefixlen:
                    shared.setdefault(network.network, {})[rank] = (interface.gbit or 0.0, str(network.ip))
    # Nodes that are one machine share one address: they need no common network.
    whole = [
        members for members in shared.values() if len({address for _, address in members.values()}) == len(fabrics)
    ]
    best = max(whole, key=lambda members: min(gbit for gbit, _ in members.values()), default={})
    return {rank: address for rank, (_, address) in best.items()}


def _port(answer: RdmaAnswer) -> RdmaPort:
    is_infiniband = answer["link_layer"] == "InfiniBand"
    rate = re.match(r"\s*(\d{1,6}(?:\.\d{1,6})?)", answer["rate"])
    state = answer["state"].partition(":")[2].strip() or answer["state"]
    return RdmaPort(
        device=answer["device"],
        port=int(answer["port"]),
        is_active=state == "ACTIVE",
        state=state,
        is_infiniband=is_infiniband,
        rate_gbit=float(rate[1]) if rate else 0.0,
        gid_index=None if is_infiniband else _gid_index(answer["gids"]),
        interfaces=tuple(answer["interfaces"]),
    )


def _gid_index(gids: Mapping[str, tuple[str, str]]) -> int | None:
    """Return the entry of RoCE v2 with an IPv4 address, or else with a routed IPv6 address."""
    routed: list[tuple[bool, int]] = []
    for index, (gid, kind) in gids.items():
        address = ipaddress.IPv6Address(gid)
        if kind == "RoCE v2" and not address.is_link_local and not address.is_unspecified:
            routed.append((address.ipv4_mapped is None, int(index)))
    return min(routed)[1] if routed else None


def _interface(answer: InterfaceAnswer, rates: Mapping[str, float]) -> Interface:
    # IPoIB reports no speed, or another one than its port.
    speed = float(answer["speed"]) / 1000 if answer["speed"].isdecimal() and len(answer["speed"]) < 9 else None
    for network in answer["networks"]:
        ipaddress.ip_interface(network)
    return Interface(name=answer["name"], gbit=rates.get(answer["name"], speed), networks=tuple(answer["networks"]))


def _leaves_node(answer: InterfaceAnswer) -> bool:
    """Return whether the interface is up and has its own address. The members of a bond have none."""
    is_up = answer["state"] in ("up", "unknown")
    return (
        is_up
        and bool(answer["networks"])
        and not (answer["tunnel"] or answer["bonded"] or is_inside(answer["name"]) or is_tunnel(answer["name"]))
    )
