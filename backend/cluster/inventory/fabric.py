"""A node's network from what /sys says: RDMA ports, interfaces, and what NCCL should be told about them."""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.cluster.program_answers import InterfaceAnswer, RdmaAnswer

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
    """As the kernel calls it: ACTIVE, DOWN, INIT."""
    is_infiniband: bool
    rate_gbit: float
    gid_index: int | None = None
    """Of RoCE: the entry for RoCE v2 with an address that is routed; None where there is none."""
    interfaces: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA calls it."""
        return f"{self.device}:{self.port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """A network interface that other nodes may be reached by."""

    name: str
    gbit: float | None
    """None where the kernel does not tell, as of a virtual machine's."""
    networks: tuple[str, ...]
    """`address/prefix`."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Without the prefix."""
        return tuple(network.partition("/")[0] for network in self.networks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """All of a node."""

    ports: tuple[RdmaPort, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    """Those that are up, have an address and lead out of the node."""
    default_routes: tuple[str, ...] = ()
    """Interfaces, the preferred one first."""
    names: tuple[str, ...] = ()
    """Of all interfaces that are up, those inside the node too."""

    @property
    def used_ports(self) -> tuple[RdmaPort, ...]:
        """The fastest active ports of one kind: what training should use.

        Slower ones (storage, management) hold up the others, and InfiniBand and RoCE cannot talk to each other.
        """
        able = [port for port in self.ports if port.is_active and (port.is_infiniband or port.gid_index is not None)]
        kinds = [[port for port in able if port.is_infiniband == kind] for kind in (True, False)]
        best = max(kinds, key=lambda ports: sum(port.rate_gbit for port in ports))
        fastest = max((port.rate_gbit for port in best), default=0)
        return tuple(port for port in best if port.rate_gbit == fastest)

    @property
    def hca(self) -> str:
        """NCCL_IB_HCA for those ports, each by its exact name; empty without any."""
        return "=" + ",".join(port.name for port in self.used_ports) if self.used_ports else ""

    @property
    def gid_index(self) -> int | None:
        """NCCL_IB_GID_INDEX; None on InfiniBand, and where ports need different ones, which NCCL finds by itself."""
        indices = {port.gid_index for port in self.used_ports if not port.is_infiniband}
        return indices.pop() if len(indices) == 1 else None


def read_fabric(rdma: Iterable[RdmaAnswer], interfaces: Sequence[InterfaceAnswer], routes: Sequence[str]) -> Fabric:
    """From hardware.py's answers; ValueError if an address is invalid."""
    ports = tuple(_port(one) for one in rdma)
    rates = {name: port.rate_gbit for port in ports for name in port.interfaces}
    return Fabric(
        ports=ports,
        interfaces=tuple(_interface(one, rates) for one in interfaces if _leads_out(one)),
        default_routes=tuple(routes),
        names=tuple(one["name"] for one in interfaces if one["state"] in ("up", "unknown")),
    )


def takes(wanted: str, names: Iterable[str]) -> list[str]:
    """Which of the names NCCL takes for a variable: prefixes with commas, after `=` exact names, after `^` others.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; `device` stands for each of its ports.
    """
    exact, excluded = "=" in wanted[:2], wanted.startswith("^")
    words = wanted.lstrip("^=").split(",")

    def fits(name: str) -> bool:
        return any(name == word or name.partition(":")[0] == word if exact else name.startswith(word) for word in words)

    return [name for name in names if fits(name) != excluded]


def is_inside(name: str) -> bool:
    """Whether an interface by this name stays inside a node."""
    return _INSIDE.match(name) is not None


def is_tunnel(name: str) -> bool:
    """Whether it is a tunnel or a management port, by its name."""
    return _TUNNEL.match(name) is not None


def common_network(fabrics: Mapping[int, Fabric]) -> dict[int, str]:
    """Rank -> its address in the fastest network that all nodes are in; empty where there is none."""
    seen: dict[Any, dict[int, tuple[float, str]]] = {}
    for rank, fabric in fabrics.items():
        for interface in fabric.interfaces:
            for text in interface.networks:
                network = ipaddress.ip_interface(text)
                if network.network.prefixlen < network.max_prefixlen:
                    seen.setdefault(network.network, {})[rank] = (interface.gbit or 0.0, str(network.ip))
    # Nodes that are one machine have one address: they need no other.
    whole = [members for members in seen.values() if len({address for _, address in members.values()}) == len(fabrics)]
    best = max(whole, key=lambda members: min(gbit for gbit, _ in members.values()), default={})
    return {rank: address for rank, (_, address) in best.items()}


def _port(one: RdmaAnswer) -> RdmaPort:
    is_infiniband = one["link_layer"] == "InfiniBand"
    rate = re.match(r"\s*(\d{1,6}(?:\.\d{1,6})?)", one["rate"])
    state = one["state"].partition(":")[2].strip() or one["state"]
    return RdmaPort(
        device=one["device"],
        port=int(one["port"]),
        is_active=state == "ACTIVE",
        state=state,
        is_infiniband=is_infiniband,
        rate_gbit=float(rate[1]) if rate else 0.0,
        gid_index=None if is_infiniband else _gid_index(one["gids"]),
        interfaces=tuple(one["interfaces"]),
    )


def _gid_index(gids: Mapping[str, tuple[str, str]]) -> int | None:
    """The entry for RoCE v2 with an IPv4 address, else with an IPv6 address that is valid beyond the link."""
    routed: list[tuple[bool, int]] = []
    for index, (gid, kind) in gids.items():
        address = ipaddress.IPv6Address(gid)
        if kind == "RoCE v2" and not address.is_link_local and not address.is_unspecified:
            routed.append((address.ipv4_mapped is None, int(index)))
    return min(routed)[1] if routed else None


def _interface(one: InterfaceAnswer, rates: Mapping[str, float]) -> Interface:
    # IPoIB does not tell its speed, or tells another one than its port's.
    speed = float(one["speed"]) / 1000 if one["speed"].isdecimal() and len(one["speed"]) < 9 else None
    for network in one["networks"]:
        ipaddress.ip_interface(network)
    return Interface(name=one["name"], gbit=rates.get(one["name"], speed), networks=tuple(one["networks"]))


def _leads_out(one: InterfaceAnswer) -> bool:
    """Up, with an address of its own; a bond's members have none, and lend theirs to the bond."""
    is_up = one["state"] in ("up", "unknown")
    return (
        is_up
        and bool(one["networks"])
        and not (one["tunnel"] or one["bonded"] or is_inside(one["name"]) or is_tunnel(one["name"]))
    )
