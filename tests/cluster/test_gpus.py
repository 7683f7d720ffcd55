"""nvidia-smi as real drivers answer it. The source of each text is beside it."""

import pytest

from backend.cluster.inventory.gpus import Gpus, link_words, read_gpus
from backend.node.nvidia_smi import read_count
from tests.cluster.gang import smi


def read(query: str, owners: dict[str, str] | None = None, **more: str) -> Gpus:
    return read_gpus(smi(query, **more), owners or {})


H100 = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 4, 570.124.06\n"
SECOND = "1, GPU-bbbb, NVIDIA H100 80GB HBM3, 81559, 70000, 570.124.06\n"


def test_a_node_without_nvidia_smi_is_a_cpu_node() -> None:
    assert read_gpus(None, {}) == Gpus(is_nvidia=False)


def test_gpus_are_read_with_their_memory_and_lanes() -> None:
    result = read(H100 + SECOND, more="0, Disabled, 5, 16, 16\n1, Disabled, 5, 8, 16\n")
    first, second = result.gpus
    assert (first.name, first.memory_mib, first.memory_used_mib) == ("NVIDIA H100 80GB HBM3", 81559, 4)
    assert (first.pcie, second.pcie) == ("5.0 x16", "5.0 x8 of x16")
    assert not first.is_divided
    assert result.usable == result.gpus


def test_a_gpu_that_somebody_holds_below_its_power_is_distinguished_from_one_that_nobody_does() -> None:
    first, second = read(H100 + SECOND, power="0, 700.00, 700.00\n1, 500.00, 700.00\n").gpus
    assert (first.is_held, second.is_held) == (False, True)
    assert (second.power_w, second.default_power_w) == (500, 700)
    assert not read(H100, power="0, [N/A], [N/A]\n").gpus[0].is_held


@pytest.mark.parametrize("none", ["[N/A]", "[Not Supported]", "N/A"])
def test_what_a_gpu_does_not_tell_is_not_known(none: str) -> None:
    # The new word and the old one: https://github.com/enkore/i3pystatus/pull/776
    # A GPU that shares the host's memory: https://github.com/mostlygeek/llama-swap/issues/782
    gpu = read(f"0, GPU-1, NVIDIA GB10, {none}, {none}, 580.95.05\n", more=f"0, {none}, {none}, {none}, {none}\n").gpus[
        0
    ]
    assert (gpu.memory_mib, gpu.memory_used_mib, gpu.pcie, gpu.fault) == (None, None, "", "")


def test_a_driver_too_old_for_a_question_answers_the_others() -> None:
    result = read(H100, more='Field "mig.mode.current" is not a valid field to query.\n')
    assert (len(result.gpus), result.gpus[0].pcie, result.trouble) == (1, "", "")


def test_errors_of_the_memory_are_read_for_the_gpus_that_tell_of_them() -> None:
    # As CSV they are numbers: Azure reads the same query so on its A100 machines (check_gpu_remapped_rows_pending),
    # https://github.com/Azure/azurehpc/blob/master/experimental/check_gpu_ecc/check_gpu_ecc.py
    # As a list they are Yes and No: https://github.com/leptonai/gpud/pull/80
    # Without ECC rows are N/A as a list (https://github.com/leptonai/gpud/pull/128); no such CSV was found.
    for no, yes in (("0", "1"), ("No", "Yes")):
        rows = f"GPU-aaaa, {no}, {no}\nGPU-bbbb, {yes}, {yes}\n"
        first, second = read(H100 + SECOND, errors="0, 0\n1, 2\n", rows=rows).gpus
        assert (first.ecc_errors, first.rows_pending, first.rows_failed) == (0, False, False)
        assert (second.ecc_errors, second.rows_pending, second.rows_failed) == (2, True, True)
    off = [read(H100, errors="0, [N/A]\n", rows=f"GPU-aaaa, {no}, {no}\n").gpus[0] for no in ("[N/A]", "N/A")]
    old = read(H100, errors='Field "ecc" is not a valid field to query.\n', rows="").gpus[0]
    for gpu in (*off, old):
        assert (gpu.ecc_errors, gpu.rows_pending, gpu.rows_failed, gpu.fault) == (None, False, False, "")


@pytest.mark.parametrize(
    "text",
    [
        # https://github.com/meta-llama/llama-models/issues/200
        "Unable to determine the device handle for GPU0000:17:00.0: Unknown Error\n",
        # https://github.com/AlexeyAB/darknet/issues/86
        "Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot\n"
        " the system to recover this GPU\n",
    ],
)
def test_a_lost_gpu_that_leaves_no_row_is_reported_in_nvidia_smi_s_words(text: str) -> None:
    result = read(H100 + text)
    assert len(result.gpus) == 1
    assert result.trouble == " ".join(text.split())


@pytest.mark.parametrize("word", ["[Unknown Error]", "[GPU is lost]", "[GPU requires reset]"])
def test_a_lost_gpu_that_leaves_its_row_has_a_fault(word: str) -> None:
    result = read(H100 + f"1, GPU-b, NVIDIA H100 80GB HBM3, {word}, {word}, 570.124.06\n")
    assert [gpu.fault for gpu in result.gpus] == ["", word.strip("[]")]
    assert result.usable == result.gpus[:1]


def test_a_driver_that_does_not_answer_is_reported() -> None:
    # https://github.com/lyulyul/shine-cluster/issues/30
    err = "Failed to initialize NVML: Driver/library version mismatch\n"
    answer = {**smi(""), "query": {"code": 18, "out": err, "err": ""}}
    assert read_gpus(answer, {}).trouble == err.strip()
    hangs = {**smi(""), "query": {"code": None, "out": "", "err": "no answer within 20 s"}}
    assert read_gpus(hangs, {}) == Gpus(is_nvidia=True, trouble="no answer within 20 s")


def test_no_devices_is_no_gpu_and_reported() -> None:
    # The words: https://github.com/NVIDIA/open-gpu-kernel-modules/issues/862. Status 6, "a query to find an object was
    # unsuccessful": https://docs.nvidia.com/deploy/nvidia-smi/index.html, under Return Value.
    answer = {**smi(""), "query": {"code": 6, "out": "No devices were found\n", "err": ""}}
    assert read_gpus(answer, {}) == Gpus(is_nvidia=True, trouble="No devices were found")


def test_processes_are_read_with_who_runs_them() -> None:
    # The form of https://github.com/NVIDIA/nvidia-docker/issues/1483, with a comma in the name.
    apps = "GPU-bbbb, 40170, /opt/a,b/bin/python3, 69000\nGPU-bbbb, 50, [Not Found], [N/A]\nGPU-else, 1, x, 2\n"
    first, second = read(H100 + SECOND, {"40170": "li"}, apps=apps).processes
    assert (first.gpu, first.pid, first.name, first.user, first.memory_mib) == (
        1,
        40170,
        "/opt/a,b/bin/python3",
        "li",
        69000,
    )
    assert (second.name, second.user, second.memory_mib) == ("", "", None)


# https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (Running CUDA Applications on Bare-Metal)
DIVIDED = """GPU 0: A100-SXM4-40GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)
  MIG 3g.20gb Device 0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 3g.20gb Device 1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)
"""
# As newer drivers pad it: articles/aks/gpu-multi-instance.md of https://github.com/MicrosoftDocs/azure-aks-docs
PADDED = """GPU 0: NVIDIA A100 40GB PCIe (UUID: GPU-48aeb943-9458-4282-da24-e5f49e0db44b)
  MIG 1g.5gb     Device  0: (UUID: MIG-fb42055e-9e53-5764-9278-438605a3014c)
  MIG 1g.5gb     Device  1: (UUID: MIG-3d4db13e-c42d-5555-98f4-8b50389791bc)
"""


@pytest.mark.parametrize(
    ("listed", "gpu", "part"),
    [
        (DIVIDED, "GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0", "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d"),
        (PADDED, "GPU-48aeb943-9458-4282-da24-e5f49e0db44b", "MIG-3d4db13e-c42d-5555-98f4-8b50389791bc"),
    ],
    ids=["guide", "padded"],
)
def test_mig_devices_belong_to_their_gpu(listed: str, gpu: str, part: str) -> None:
    row = f"0, {gpu}, A100-SXM4-40GB, 40536, 12, 470.57.02\n"
    result = read(row, more="0, Enabled, 4, 16, 16\n", list=listed, apps=f"{part}, 77, python, 512\n")
    assert result.gpus[0].is_divided
    assert result.processes[0].gpu == 0


# https://github.com/NVIDIA/nccl/issues/933 (8 GPUs and 9 NICs there)
WITH_NICS = """        GPU0    GPU1    GPU2    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV8     NV8     NODE    SYS     0-47,96-143     0
GPU1    NV8      X      NV8     NODE    SYS     0-47,96-143     0
GPU2    NV8     NV8      X      SYS     PIX     48-95,144-191   1
NIC0    NODE    NODE    SYS      X      SYS
NIC1    SYS     SYS     PIX     SYS      X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
# Consumer cards behind switches: the header underlined by an escape sequence, a column more than its words.
UNDERLINED = (
    "\x1b[4m\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tPIX\tSYS\t0-23,48-71\t0\t\tN/A\n"
    "GPU1\tPIX\t X \tSYS\t0-23,48-71\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \t24-47,72-95\t1\t\tN/A\n"
)
# With 36 NICs columns run into one another, behind those of the GPUs: https://github.com/sgl-project/sglang/issues/4572
GLUED = """        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    PIX     NODENODE    0-55,112-167    0               N/A
GPU1    NV18     X      NODE    NODEPIX     0-55,112-167    0               N/A
"""
ALONE = """        GPU0    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PHB     0-251   0               N/A
NIC0    PHB      X
"""
BRIDGED = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tSYS\nGPU1\tNV4\t X \tSYS\nGPU2\tSYS\tSYS\t X \n"


@pytest.mark.parametrize(
    ("topo", "words"),
    [(WITH_NICS, "NV8"), (UNDERLINED, "PIX, SYS"), (GLUED, "NV18"), (ALONE, ""), (BRIDGED, "NV4, SYS"), ("", "")],
    ids=["with NICs", "underlined", "glued", "alone", "bridged", "no answer"],
)
def test_the_links_between_gpus_are_reported(topo: str, words: str) -> None:
    assert link_words(read(H100, topo=topo).links) == words


def test_the_newest_cuda_of_the_driver_is_in_the_table_s_head() -> None:
    # https://github.com/ethanwharris/gnome-nvidia-extension/pull/221
    head = "| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |\n"
    assert read(H100, table=head).cuda == "13.0"
    assert read(H100, table="| NVIDIA-SMI 570  Driver Version: 570  CUDA Version: N/A |").cuda == ""


@pytest.mark.parametrize("text", ["[N/A]", "", "\u00b2", "-1", "1.5"], ids=repr)
def test_what_is_no_whole_number_is_no_figure(text: str) -> None:
    assert read_count(text) is None
