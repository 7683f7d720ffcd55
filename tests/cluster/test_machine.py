"""Preflight results about the machines, from possible answers of their tools."""

from typing import Any

import pytest

from app.text import LANGUAGES, render_problem
from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Result
from backend.job.mapping import with_values
from tests.cluster.gang import DISK, H100, MODULES, Gang, hardware_answer, make_facts, own_gpu, smi

GIB = 1 << 30


def test_a_plan_on_cpus_asks_for_no_gpu() -> None:
    gang = Gang()
    gang.job = with_values(gang.job, {"cluster.gpu": "cpu"})
    gang.first.on("hardware", reply=hardware_answer(smi=None))
    # A machine with a GPU may train on its CPUs, whatever its limits.
    gang.second.on("hardware", reply=hardware_answer(nofile=10))
    results = gang.check()
    assert {result.status for result in results} == {"ok"}
    assert not [result for result in results if result.name in ("gpus", "gpus_free") and result.status == "warning"]


def test_a_node_without_nvidia_smi_is_said_to_be_a_cpu_node() -> None:
    gang = Gang()
    gang.second.on("hardware", reply=hardware_answer(smi=None))
    warning, problem = gang.only_warning()
    assert (warning.name, warning.rank, problem.code) == ("gpus", 1, "no_nvidia_smi")


def test_too_few_gpus_are_counted() -> None:
    gang = Gang(cluster={"gpus_per_node": 2})
    for node in (gang.first, gang.second):
        node.on("hardware", reply=hardware_answer(smi=smi(H100 + H100.replace("0, GPU-aaaa", "1, GPU-bbbb"))))
    gang.second.on("hardware", reply=hardware_answer())
    failures = [(r.name, r.rank, r.problem and r.problem.code) for r in gang.check() if r.status == "failure"]
    assert failures == [("gpus", 1, "too_few_gpus")]


@pytest.mark.parametrize(
    ("query", "command"),
    [
        ("0, GPU-a, NVIDIA H100, [Unknown Error], [Unknown Error], 570.124.06\n", "sudo nvidia-smi --gpu-reset -i 0"),
        ("Unable to determine the device handle for GPU0000:17:00.0: Unknown Error\n", "sudo reboot"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "sudo reboot"),
    ],
    ids=["its row", "no row", "driver"],
)  # fmt: skip
def test_a_lost_gpu_is_reported_with_what_brings_it_back(query: str, command: str) -> None:
    gang = Gang(nodes=1)
    gang.first.on("hardware", reply=hardware_answer(smi=smi(query)))
    failure, problem = gang.only_failure()
    assert (failure.name, problem.code, problem.values["command"]) == ("gpus", "gpu_lost", command)


def test_a_divided_gpu_is_reported_with_what_makes_it_whole() -> None:
    gang = Gang(nodes=1)
    gang.first.on("hardware", reply=hardware_answer(smi=smi(H100, more="0, Enabled, 5, 16, 16\n")))
    _, problem = gang.only_failure()
    assert (problem.code, problem.values["command"]) == ("gpu_divided", "sudo nvidia-smi -i 0 -mig 0")


@pytest.mark.parametrize(
    ("more", "code", "values"),
    [
        ({"errors": "0, 2\n"}, "gpu_ecc_errors", {"said": "GPU 0: 2", "command": "sudo nvidia-smi --gpu-reset -i 0"}),
        ({"rows": "GPU-aaaa, Yes, No\n"}, "gpu_rows_pending", {"command": "sudo nvidia-smi --gpu-reset -i 0"}),
        (
            {"power": "0, 500.00, 700.00\n"},
            "gpu_power_held",
            {"said": "GPU 0: 500 / 700 W", "command": "sudo nvidia-smi -i 0 -pl 700"},
        ),
        # What a reset cannot mend is told alone.
        ({"errors": "0, 2\n", "rows": "GPU-aaaa, Yes, Yes\n"}, "gpu_rows_failed", {"gpus": ["0"]}),
    ],
    ids=["errors", "pending", "power", "failed"],
)
def test_a_gpu_that_is_not_sound_is_a_warning_with_what_to_do(
    more: dict[str, str], code: str, values: dict[str, object]
) -> None:
    gang = Gang(nodes=1)
    gang.first.on("hardware", reply=hardware_answer(smi=smi(H100, **more)))
    warning, problem = gang.only_warning()
    assert (warning.name, problem.code) == ("gpus", code)
    assert values.items() <= problem.values.items()


def test_memory_without_errors_or_without_ecc_is_well() -> None:
    gang = Gang(nodes=1)
    for errors, rows in (("0, 0\n", "GPU-aaaa, No, No\n"), ("0, [N/A]\n", "GPU-aaaa, [N/A], [N/A]\n")):
        gang.first.on("hardware", reply=hardware_answer(smi=smi(H100, errors=errors, rows=rows)))
        assert {result.status for result in gang.check()} == {"ok"}


def test_whoever_uses_a_gpu_is_named() -> None:
    gang = Gang(nodes=1)
    busy = smi(H100.replace("81559, 4,", "81559, 40960,"), apps="GPU-aaaa, 77, /opt/bin/python, 40000\n")
    gang.first.on("hardware", reply=hardware_answer(smi=busy, owners={"77": "li"}))
    _, problem = gang.only_warning()
    assert (problem.code, problem.values["used"]) == ("gpus_busy", "GPU 0: 40.0 GiB")
    assert problem.values["who"] == "li: /opt/bin/python (pid 77)"


def test_memory_that_nobody_here_holds_is_another_container_s() -> None:
    # https://github.com/NVIDIA/nvidia-docker/issues/179
    gang = Gang(nodes=1)
    gang.first.on("hardware", reply=hardware_answer(smi=smi(H100.replace("81559, 4,", "81559, 40960,"))))
    assert gang.only_warning()[1].code == "gpus_busy_hidden"


def test_a_gpu_that_shares_the_host_s_memory_is_busy_by_its_processes() -> None:
    # https://github.com/mostlygeek/llama-swap/issues/782
    gang = Gang(nodes=1)
    apps = "GPU-1, 114687, /usr/local/bin/python, 19135\n"
    gang.first.on(
        "hardware", reply=hardware_answer(smi=smi("0, GPU-1, NVIDIA GB10, [N/A], [N/A], 580.95.05\n", apps=apps))
    )
    assert gang.only_warning()[1].values["used"] == "GPU 0: 18.7 GiB"


def test_a_desktop_is_nobody() -> None:
    gang = Gang(nodes=1)
    gang.first.on("hardware", reply=hardware_answer(smi=smi(H100.replace("81559, 4,", "81559, 600,"))))
    assert {result.status for result in gang.check()} == {"ok"}


TABLE = "| NVIDIA-SMI 535.54.03              Driver Version: 535.54.03    CUDA Version: 12.2     |\n"


@pytest.mark.parametrize(
    ("cuda", "code"), [("13.0", "driver_too_old"), ("", "torch_without_cuda"), ("12.8", None), (None, None)]
)
def test_torch_must_be_built_for_what_the_driver_takes(cuda: str | None, code: str | None) -> None:
    gang = Gang(nodes=1)
    gang.facts[0] = make_facts(cuda=cuda)
    gang.first.on("hardware", reply=hardware_answer(smi=smi(H100, table=TABLE)))
    codes = [r.problem.code for r in gang.check() if r.problem]
    assert codes == ([code] if code else [])
    if code:
        gang.only_failure()


def test_a_torch_without_cuda_is_replaced_by_the_same_version_with_it() -> None:
    gang = Gang(nodes=1)
    gang.facts[0] = make_facts({**MODULES, "torch": "2.13.0+cpu"}, cuda="")
    gang.first.on("hardware", reply=hardware_answer(smi=smi(H100, table=TABLE.replace("12.2", "12.9"))))
    index = "--extra-index-url https://download.pytorch.org/whl/cu128"
    command = gang.only_failure()[1].values["command"]
    assert command == f"/opt/lf/bin/python -m pip install {index} torch==2.13.0+cu128"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        # Docker's default: https://github.com/NVIDIA/nccl/issues/342
        ({"shm": {**DISK, "total": 64 << 20}}, "shm_small"),
        ({"nofile": 256}, "nofile_low"),
        ({"ends_at_logout": True}, "ends_at_logout"),
    ],
)
def test_room_that_docker_s_defaults_do_not_give_is_reported(more: dict[str, Any], code: str) -> None:
    gang = Gang()
    gang.second.on("hardware", reply=hardware_answer(**more))
    warning, problem = gang.only_warning()
    assert (warning.rank, problem.code) == (1, code)


def port(device: str, state: str = "4: ACTIVE") -> dict[str, Any]:
    return {"device": device, "port": "1", "state": state, "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
            "gids": {}, "interfaces": []}  # fmt: skip


def test_locked_memory_matters_where_there_is_infiniband() -> None:
    # https://github.com/NVIDIA/nccl-tests/issues/206
    gang = Gang()
    low = hardware_answer(memlock=8192 << 10)
    gang.first.on("hardware", reply=low)
    assert "memlock_low" not in [r.problem.code for r in gang.check() if r.problem]
    for node in gang.fakes:
        node.on("hardware", reply=hardware_answer(rdma=[port("mlx5_0")], smi=smi(own_gpu(node.name))))
    gang.first.on("hardware", reply={**low, "rdma": [port("mlx5_0")]})
    assert gang.only_warning()[1].values["kib"] == 8192


def test_a_node_with_fewer_active_ports_is_named_with_those_that_are_down() -> None:
    gang = Gang()
    gang.first.on("hardware", reply=hardware_answer(rdma=[port("mlx5_0"), port("mlx5_1")]))
    down = [port("mlx5_0"), port("mlx5_1", "1: DOWN")]
    gang.second.on("hardware", reply=hardware_answer(rdma=down, smi=smi(own_gpu("other"))))
    warning, problem = gang.only_warning()
    assert (warning.name, warning.rank, problem.values["down"]) == ("rdma", 1, "mlx5_1:1 DOWN")


@pytest.mark.parametrize(("share", "code"), [(3.0, None), (1.5, "space_for_one"), (0.5, "no_space")])
def test_there_must_be_room_for_two_checkpoints(share: float, code: str | None) -> None:
    gang = Gang(nodes=1)
    # Qwen3-0.6B has 596 million parameters (presets/models.yaml), 12 bytes each with plain AdamW in fp32.
    item = 596_049_920 * 12
    gang.first.on("hardware", reply=hardware_answer(disks={"/out": {**DISK, "free": int(share * item)}}))
    assert [r.problem.code for r in gang.check() if r.problem] == ([code] if code else [])
    if code:
        gang.only("failure" if code == "no_space" else "warning")


def test_a_quota_counts_as_a_full_disk() -> None:
    # As heading() and showquotas() print it with -w and -p: quota.c of https://github.com/wangshilong/quota-tools,
    # a copy of Linux's. The star stands beyond the soft limit, and -p fills the columns of grace.
    gang = Gang(nodes=1)
    quota = ("Disk quotas for user li (uid 1001): \n"
             "     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace\n"
             "       /dev/sdb    4096       0       0       0       5       0       0       0\n"
             "       nas:/out 1048577* 1048576 2097153 1766900000      12       0       0       0\n")  # fmt: skip
    gang.first.on("hardware", reply=hardware_answer(quota=quota))
    assert gang.only_failure()[1].values["free"] == "1.0"


@pytest.mark.parametrize(
    ("offsets", "odd"), [((0.1, 0.2, -0.1), None), ((0.0, 30.0, 0.5), 1), ((3600.0, 3600.1, 3600.2), None)]
)
def test_the_node_whose_clock_is_off_is_named(offsets: tuple[float, ...], odd: int | None) -> None:
    gang = Gang(nodes=3)
    gang.facts = {rank: make_facts(clock_offset_s=offset) for rank, offset in enumerate(offsets)}
    result = [(r.rank, r.name) for r in gang.check() if r.status == "warning"]
    assert result == ([(odd, "clock")] if odd is not None else [])
    if odd is not None:
        assert gang.only_warning()[1].values["seconds"] == "+30"


def test_an_offset_that_the_slow_answer_explains_is_none() -> None:
    gang = Gang()
    gang.facts[1] = make_facts(clock_offset_s=8.0, clock_error_s=4.0)
    assert {result.status for result in gang.check()} == {"ok"}


def way(interface: str | None, machine: str) -> NodeFacts:
    facts = make_facts(machine=machine)
    return NodeFacts(**{name: getattr(facts, name) for name in NodeFacts.__slots__} | {"interface": interface})


@pytest.mark.parametrize("interface", ["lo", "docker0", "virbr0"])
def test_a_way_that_does_not_leave_the_node_is_named(interface: str) -> None:
    # The master's name is 127.0.1.1 in its own /etc/hosts: its rank would listen on lo, and all others wait.
    gang = Gang()
    gang.facts = {0: way(interface, "a"), 1: way("eth0", "b")}
    failure, problem = gang.only_failure()
    assert (failure.rank, problem.code, problem.field) == (0, "internal_interface", "cluster.hosts[0].fabric_address")


def test_a_way_through_a_tunnel_is_slow_and_the_user_s_choice() -> None:
    gang = Gang()
    gang.facts = {0: way("tailscale0", "a"), 1: way("eth0", "b")}
    warning, problem = gang.only_warning()
    assert (warning.rank, problem.code, problem.values["interface"]) == (0, "tunnel_interface", "tailscale0")


def ways(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "state": "up", "speed": "", "tunnel": False, "bonded": False,
             "networks": []} for name in names]  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "value", "is_there"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth0,ib0", True),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", True),
        ("NCCL_SOCKET_IFNAME", "bond0", False),
        ("GLOO_SOCKET_IFNAME", "eth", False),
        ("GLOO_SOCKET_IFNAME", "eth0", True),
        ("NCCL_IB_HCA", "mlx5", True),
        ("NCCL_IB_HCA", "=mlx5_0", True),
        ("NCCL_IB_HCA", "=mlx5_1:1", False),
    ],
)
def test_interfaces_and_ports_that_the_job_names_must_be_there(variable: str, value: str, is_there: bool) -> None:
    gang = Gang(environment={variable: value})
    rdma = [port("mlx5_0"), port("mlx5_1", "1: DOWN")]
    everything = hardware_answer(interfaces=ways("lo", "eth0", "bond0"), rdma=[port("mlx5_0"), port("mlx5_1")])
    gang.first.on("hardware", reply=everything)
    gang.second.on("hardware", reply=hardware_answer(interfaces=ways("lo", "eth0"), rdma=rdma))
    if is_there:
        assert "interface_missing" not in [r.problem.code for r in gang.check() if r.problem]
        return
    result = [r for r in gang.check() if r.problem and r.problem.code == "interface_missing"]
    assert result[-1].rank == 1
    assert result[-1].problem
    assert result[-1].problem.field == f"environment.{variable}"
    for lang in LANGUAGES:
        assert value in render_problem(lang, result[-1].problem)["message"]


def test_nodes_that_are_one_machine_may_talk_over_lo() -> None:
    gang = Gang()
    gang.facts = {0: way("lo", "a"), 1: way("lo", "a")}
    assert {result.status for result in gang.check()} == {"ok"}


def test_a_hardware_answer_that_fails_is_reported_and_hides_nothing_else() -> None:
    gang = Gang()
    gang.second.on("hardware", reply=Result(code=1, out="", err="boom"))
    failure, problem = gang.only_failure()
    assert (failure.name, failure.rank, problem.code) == ("gpus", 1, "bad_answer")


def test_the_room_for_checkpoints_of_unknown_size_is_a_note_and_no_warning() -> None:
    gang = Gang()
    gang.job = with_values(gang.job, {"model.preset": None, "model.hf_config": {"model_type": "brand_new"}})
    results = [result for result in gang.check() if result.name == "space"]
    assert [(result.rank, result.status) for result in results] == [(0, "skipped")]
    note = results[0].problem
    assert note is not None
    assert (note.code, note.severity) == ("space_unknown", "note")
    assert {result.status for result in gang.check()} == {"ok", "skipped"}
