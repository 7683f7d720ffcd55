"""The detected hardware fills the Hardware step or is proposed. Values that differ between nodes are left out."""

from dataclasses import replace
from typing import Any

import pytest

from app.text import LANGUAGES, render_problem, t
from app.text.detected import nccl_variables, table
from app.wizard.detected_hardware import hardware_edits, intra_node, power_notes, preset_of, proposals
from backend.cluster.inventory.hardware import parse_hardware
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.runs.tasks.discovery import NodeMemory
from tests.cluster.gang import DISK, hardware_answer, make_facts, smi
from tests.cluster.jobs import make_job

GIDS = {"3": ["0000:0000:0000:0000:0000:ffff:0a98:000c", "RoCE v2"]}


def port(device: str, **more: Any) -> dict[str, Any]:
    return {"device": device, "port": "1", "state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)", "gids": {},
            "link_layer": "InfiniBand", "interfaces": [], **more}  # fmt: skip


def interface(name: str, network: str, speed: str) -> dict[str, Any]:
    return {"name": name, "state": "up", "speed": speed, "tunnel": False,
            "bonded": False, "networks": [network]}  # fmt: skip


def node(name: str = "NVIDIA A100-SXM4-80GB", mib: int = 81920, link: str = "NV12", **more: Any) -> NodeMemory:
    rows = "".join(f"{i}, GPU-{i}, {name}, {mib}, 0, 550.54\n" for i in range(2))
    pcie = "".join(f"{i}, Disabled, 4, 16, 16\n" for i in range(2))
    topo = f"\tGPU0\tGPU1\nGPU0\t X \t{link}\nGPU1\t{link}\t X \n"
    answer = hardware_answer(**{"smi": smi(rows, more=pcie, topo=topo), "memory_mib": 1_024_041, **more})
    return NodeMemory(hardware=parse_hardware(answer))


def job(**more: Any) -> Job:
    return with_values(make_job(nodes=2), {"cluster.gpus_per_node": 8, **more})


def test_what_all_nodes_agree_on_is_filled_in() -> None:
    result = {rank: node(rdma=[port("mlx5_0"), port("mlx5_1")]) for rank in (0, 1)}
    assert hardware_edits(job(), result) == {
        "cluster.host_memory_gib": 1000.0,
        "cluster.gpus_per_node": 2,
        "cluster.gpu": "a100-80g",
        "cluster.intra_node_gb_per_s": 600.0,
        "cluster.nics_per_node": 2,
        "cluster.inter_node_gbit_per_s": 200.0,
    }


def test_what_differs_or_is_not_reported_is_left_as_it_is() -> None:
    mixed = {0: node(), 1: node("NVIDIA L40S", mib=46068, link="SYS")}
    assert hardware_edits(job(), mixed).keys() == {"cluster.host_memory_gib", "cluster.gpus_per_node"}
    cpus = {rank: node(smi=None) for rank in (0, 1)}
    assert hardware_edits(job(), cpus).keys() == {"cluster.host_memory_gib"}
    assert "cluster.nodes" not in hardware_edits(job(), {0: node()})


@pytest.mark.parametrize(
    ("name", "mib", "key"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80g"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40g"),
        ("NVIDIA A800-SXM4-80GB", 81920, "a800-80g"),
        ("NVIDIA H20", 97871, "h20-96g"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx4090-24g"),
        ("Tesla V100-SXM2-32GB", 32768, "v100-32g"),
        ("NVIDIA H100 PCIe", 81559, None),
        ("NVIDIA GB200", 189471, None),
        ("NVIDIA RTX A6000", 49140, "a6000-48g"),
        ("NVIDIA L20", 46068, "l20-48g"),
        ("NVIDIA GeForce RTX 5090", 32607, "rtx5090-32g"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", 24463, None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtxpro6000-96g"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, None),
    ],
)
def test_a_preset_is_chosen_by_model_and_memory(name: str, mib: int, key: str | None) -> None:
    assert preset_of(node(name, mib=mib).hardware.gpus) == key


def test_gpus_that_may_draw_less_than_the_estimate_counts_on_are_told_until_their_speed_is_measured() -> None:
    def limited(watts: int) -> NodeMemory:
        rows = "".join(f"{i}, GPU-{i}, NVIDIA H100 80GB HBM3, 81559, 0, 550.54\n" for i in range(2))
        power = "".join(f"{i}, {watts}.00, {watts}.00\n" for i in range(2))
        return NodeMemory(hardware=parse_hardware(hardware_answer(smi=smi(rows, power=power))))

    the_job = job(**{"cluster.gpu": "a100-80g"})
    (note,) = power_notes(the_job, {0: limited(500), 1: limited(700)}, "h100-80g")
    assert note.values == {
        "nodes": the_job.cluster.hosts[0].name,
        "watts": 500,
        "counted": 700,
        "share": 10,
        "gpu": "H100 80 GB SXM",
    }
    for lang in LANGUAGES:
        assert "500 W" in render_problem(lang, note)["message"]
    assert power_notes(the_job, {0: limited(700), 1: node()}, "h100-80g") == []
    measured = job(**{"cluster.calibration.matmul_tflops": 600.0})
    assert power_notes(measured, {0: limited(500)}, "h100-80g") == []


@pytest.mark.parametrize(
    ("name", "link", "speed"),
    [
        ("NVIDIA H100 80GB HBM3", "NV18", 900),
        ("NVIDIA B200", "NV18", 1800),
        ("NVIDIA GB200", "NV18", 1800),
        ("NVIDIA L40S", "SYS", 62),
    ],
)
def test_the_speed_inside_a_node_follows_from_its_links(name: str, link: str, speed: float) -> None:
    assert intra_node(node(name, link=link).hardware.gpus) == speed


def test_a_faster_common_network_is_proposed_as_the_fabric_addresses() -> None:
    def two(last: int) -> NodeMemory:
        ways = [interface("eth0", f"10.0.0.{last}/24", "1000"), interface("ib0", f"192.168.9.{last}/24", "200000")]
        return node(interfaces=ways)

    the_job, hosts = job(), {"lines": "train@10.0.0.1\n10.0.0.2 key=/k"}
    (note,) = proposals(the_job, {0: two(1), 1: two(2)}, hosts)
    lines = note.edit["cluster.hosts"]["lines"]  # type: ignore[index]
    assert lines == "train@10.0.0.1 fabric=192.168.9.1\n10.0.0.2 key=/k fabric=192.168.9.2"
    for lang in LANGUAGES:
        assert "192.168.9.2" in render_problem(lang, note)["message"]
    same = {rank: node(interfaces=[interface("eth0", f"10.0.0.{rank + 1}/24", "1000")]) for rank in (0, 1)}
    assert proposals(the_job, same, hosts) == []


def test_nccl_is_told_what_it_would_not_find_by_itself() -> None:
    roce = port("mlx5_0", link_layer="Ethernet", gids=GIDS)
    slow = port("mlx5_9", rate="25 Gb/sec (1X EDR)")
    assert nccl_variables({0: node(rdma=[port("mlx5_0")]), 1: node(rdma=[port("mlx5_0")])}) == {}
    assert nccl_variables({0: node(rdma=[port("mlx5_0"), slow])}) == {"NCCL_IB_HCA": "=mlx5_0:1"}
    assert nccl_variables({0: node(rdma=[roce]), 1: node(rdma=[roce])}) == {"NCCL_IB_GID_INDEX": "3"}
    (note,) = proposals(job(environment={"NCCL_DEBUG": "WARN"}), {0: node(rdma=[roce]), 1: node(rdma=[roce])}, [])
    assert note.edit == {"environment": {"NCCL_DEBUG": "WARN", "NCCL_IB_GID_INDEX": "3"}}
    own = job(environment={"NCCL_IB_GID_INDEX": "5"})
    assert proposals(own, {0: node(rdma=[roce]), 1: node(rdma=[roce])}, []) == []


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_table_says_what_each_node_has_and_that_one_has_no_gpus(lang: str) -> None:
    shown = table(job(), {0: node(rdma=[port("mlx5_0", link_layer="Ethernet", gids=GIDS)]), 1: node(smi=None)}, lang)
    first, second = (" | ".join(row) for row in shown["rows"])
    assert "2 × NVIDIA A100-SXM4-80GB | NV12 · PCIe 4.0 x16" in first
    assert "mlx5_0:1 RoCE 200 Gbit/s ACTIVE GID 3" in first
    assert "CPU" in second.split(" | ")[1]
    assert len(shown["head"]) == len(shown["rows"][0])


@pytest.mark.parametrize("lang", LANGUAGES)
def test_nodes_without_gpus_have_no_columns_of_them_and_nothing_is_a_bare_dash(lang: str) -> None:
    cpus = table(job(), {rank: node(smi=None) for rank in (0, 1)}, lang)
    (row, _), gpus = cpus["rows"], table(job(), {0: node()}, lang)
    assert len(cpus["head"]) == len(row) == len(gpus["head"]) - 3
    assert dict(zip(cpus["head"], row, strict=True))["InfiniBand / RoCE"] == t(lang, "wizard.found.none")
    assert dict(zip(gpus["head"], gpus["rows"][0], strict=True))[t(lang, "wizard.found.busy")] == t(
        lang, "wizard.found.idle"
    )


def test_software_limits_disk_and_the_default_route_are_reported() -> None:
    facts = make_facts({"torch": "2.13.0", "mcore_adapter": None}, nccl="2.27.3")
    ways = [interface("eth0", "10.0.0.1/24", "1000"), interface("ib0", "192.168.9.1/24", "200000")]
    interface_ = node(
        interfaces=ways, default_routes=["eth0", "wlan0"], memlock=8192 << 10, shm={**DISK, "total": 64 << 20}
    )
    (row,) = table(job(), {0: replace(interface_, facts=facts)}, "en")["rows"]
    text = " | ".join(row)
    assert "Python 3.11.2, torch 2.13.0, mcore_adapter –, NCCL 2.27.3" in text
    assert "shm 0.0625 GiB · ulimit -l 8192 KiB -n 65536" in text
    assert "eth0 10.0.0.1 1 Gbit/s (default route, NCCL_SOCKET_IFNAME); ib0 192.168.9.1 200 Gbit/s" in text
    assert "1048576 / 1048576 GiB nfs4" in text
