"""RDMA ports and interfaces from /sys, and the resulting settings of NCCL."""

from typing import Any

import pytest

from backend.cluster.inventory.fabric import Fabric, common_network, is_inside, is_tunnel, read_fabric


def port(device: str, **more: Any) -> dict[str, Any]:
    return {"device": device, "port": "1", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand", "gids": {}, "interfaces": [], **more}  # fmt: skip


def roce(device: str, gids: dict[str, list[str]], **more: Any) -> dict[str, Any]:
    return port(device, **{"link_layer": "Ethernet", "rate": "200 Gb/sec (4X HDR)", "gids": gids, **more})


def interface(name: str, *networks: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "state": "up", "speed": "25000", "tunnel": False,
            "bonded": False, "networks": networks, **more}  # fmt: skip


def fabric(*ports: dict[str, Any], interfaces: tuple[dict[str, Any], ...] = ()) -> Fabric:
    return read_fabric(ports, interfaces, ["eth0"])


# The table of https://github.com/NVIDIA/nccl/issues/769, as /sys writes its addresses.
GIDS = {
    "0": ["fe80:0000:0000:0000:0ac0:ebff:feda:1cfb", "IB/RoCE v1"],
    "1": ["fe80:0000:0000:0000:0ac0:ebff:feda:1cfb", "RoCE v2"],
    "2": ["0000:0000:0000:0000:0000:ffff:c800:d106", "IB/RoCE v1"],
    "3": ["0000:0000:0000:0000:0000:ffff:c800:d106", "RoCE v2"],
}
# Indices begin at 4 in a pod: https://github.com/NVIDIA/nccl/issues/1573
POD = {str(int(index) + 4): gid for index, gid in GIDS.items()}
# All are IPv6, as in https://github.com/uccl-project/uccl/pull/803
IPV6 = {
    "0": ["fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2"],
    "1": ["fd93:16d3:59b6:012e:0000:0000:0000:0001", "IB/RoCE v1"],
    "2": ["fd93:16d3:59b6:012e:0000:0000:0000:0001", "RoCE v2"],
}


@pytest.mark.parametrize(("gids", "index"), [(GIDS, 3), (POD, 7), (IPV6, 2), ({"0": GIDS["0"], "1": GIDS["1"]}, None)])
def test_the_gid_is_roce_v2_with_an_address_that_is_routed(gids: dict[str, list[str]], index: int | None) -> None:
    result = fabric(roce("mlx5_bond_0", gids))
    assert result.ports[0].gid_index == index
    assert result.gid_index == index
    assert bool(result.hca) == (index is not None)


def test_an_infiniband_port_needs_no_gid() -> None:
    result = fabric(port("mlx5_0"), port("mlx5_1"))
    assert (result.hca, result.gid_index) == ("=mlx5_0:1,mlx5_1:1", None)
    assert result.ports[0].rate_gbit == 400


def test_ports_that_are_not_active_or_slower_are_left_out() -> None:
    result = fabric(
        port("mlx5_0"),
        port("mlx5_1", state="1: DOWN"),
        port("mlx5_2", state="2: INIT"),
        port("mlx5_3", rate="100 Gb/sec (4X EDR)"),
    )
    assert result.hca == "=mlx5_0:1"
    assert [port_.state for port_ in result.ports] == ["ACTIVE", "DOWN", "INIT", "ACTIVE"]


def test_infiniband_and_roce_are_not_mixed() -> None:
    storage = roce("mlx5_bond_0", GIDS, rate="200 Gb/sec (2X NDR)")
    assert fabric(port("mlx5_0"), port("mlx5_1"), storage).hca == "=mlx5_0:1,mlx5_1:1"
    assert fabric(port("mlx5_0", rate="100 Gb/sec (4X EDR)"), storage).hca == "=mlx5_bond_0:1"


def test_ports_that_need_different_gids_leave_the_choice_to_nccl() -> None:
    assert fabric(roce("mlx5_0", GIDS), roce("mlx5_1", POD)).gid_index is None


@pytest.mark.parametrize(
    "name",
    [
        "lo",
        "docker0",
        "docker_gwbridge",
        "br-3f2a9c1d0e4b",
        "virbr0",
        "veth12ab",
        "tailscale0",
        "cni0",
        "flannel.1",
        "wg0",
        "zt5u4",
    ],
)
def test_interfaces_inside_a_node_are_not_proposed(name: str) -> None:
    assert is_inside(name) != is_tunnel(name)
    assert (
        fabric(interfaces=(interface(name, "10.1.0.2/16"), interface("bond0", "10.2.0.2/16"))).interfaces[0].name
        == "bond0"
    )


@pytest.mark.parametrize(
    "name", ["eth0", "bond0", "ib0", "br0", "ens1f0np0", "enp3s0", "net1", "lom1", "vlan100", "hsn0"]
)
def test_interfaces_between_nodes_are(name: str) -> None:
    assert [interface_.name for interface_ in fabric(interfaces=(interface(name, "10.1.0.2/16"),)).interfaces] == [name]


def test_what_is_down_bonded_a_tunnel_or_without_address_is_not_proposed() -> None:
    result = fabric(interfaces=(
        interface("eth1", "10.1.0.2/16", state="down"), interface("eth2", "10.1.0.3/16", bonded=True),
        interface("eth3"), interface("vpn", "10.9.0.1/24", tunnel=True), interface("bond0", "10.1.0.4/16"),
    ))  # fmt: skip
    assert [interface_.name for interface_ in result.interfaces] == ["bond0"]


def test_the_fabric_addresses_are_in_the_fastest_network_that_all_share() -> None:
    def node(last: int) -> Fabric:
        ib0 = interface("ib0", f"192.168.7.{last}/24", speed="-1")
        own = interface("eth9", f"172.{last}.0.1/16", speed="400000")
        return fabric(port("mlx5_0", interfaces=["ib0"]), interfaces=(interface("eth0", f"10.0.0.{last}/24"), ib0, own))

    assert common_network({0: node(1), 1: node(2)}) == {0: "192.168.7.1", 1: "192.168.7.2"}
    assert common_network({0: node(1), 1: fabric(interfaces=(interface("eth0", "10.0.0.9/24"),))}) == {
        0: "10.0.0.1",
        1: "10.0.0.9",
    }


def test_a_fabric_of_ipv6_alone_has_addresses_too() -> None:
    nodes = {rank: fabric(interfaces=(interface("eth0", f"fd00:1::{rank + 1}/64"),)) for rank in (0, 1)}
    assert common_network(nodes) == {0: "fd00:1::1", 1: "fd00:1::2"}
    assert nodes[0].interfaces[0].addresses == ("fd00:1::1",)


def test_nodes_without_a_common_network_have_no_proposal() -> None:
    nodes = {
        0: fabric(interfaces=(interface("eth0", "10.0.0.1/24"),)),
        1: fabric(interfaces=(interface("eth0", "10.1.0.1/24"),)),
    }
    assert common_network(nodes) == {}
    assert common_network({0: nodes[0], 1: nodes[0]}) == {}, "two nodes on one machine"
