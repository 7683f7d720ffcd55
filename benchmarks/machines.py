"""GPU and interconnect figures of the machines in published runs.

GPU figures come from presets/gpus.yaml, or else from the same page. NVLink per GPU, both directions: A100 600 GB/s,
H100 and H20 900, H800 400, Blackwell 1800. A 4090 has 16 lanes of PCIe 4.
"""

import re
from dataclasses import replace

from backend.estimate.time.efficiency import MEMORY_SHARE, Machine, machine_of, with_fp8_products
from backend.job.cluster import Cluster
from backend.job.presets import Gpu, gpus
from benchmarks.shapes import NotModelled


def _in_layers(best: float) -> float:
    """Return the TFLOP/s in the shapes of layers on a Blackwell GPU whose best GEMM is `best`, by the B200's ratio."""
    return (gpus()["b200-180g"].matmul_tflops or 0.0) * best / 1745


_GB200 = Gpu(
    key="",
    name="GB200 NVL72",
    memory_gib=183,
    bf16_tflops=2500,
    matmul_tflops=_in_layers(1822),
    hbm_gb_per_s=8000,
    mma_sync_share=gpus()["b200-180g"].mma_sync_share,
    power_w=1200,
    fp8_over_bf16=3615.6 / 1822,
    fast_fp8_attention=True,
    source="https://github.com/stas00/ml-engineering/blob/master/compute/accelerator/README.md",
)
_GB300 = replace(_GB200, name="GB300 NVL72", memory_gib=275, power_w=1400)
_B300 = replace(
    _GB200,
    name="B300",
    memory_gib=267,
    bf16_tflops=2250,
    matmul_tflops=_in_layers(1769),
    power_w=1000,
    fp8_over_bf16=3353.3 / 1769,
)

# Substring of a row's `hardware` -> GPU, GB/s both directions inside a node, Gbit/s of a port, ports, GPUs of a node.
# Tried in this order. DGX A100: eight 200 Gbit/s ports (Selene); DGX H100 and B200 eight of 400; B300 and GB300 eight
# and one a GPU of 800. vTrain: 800 Gbit/s a node (https://github.com/VIA-Research/vTrain, config/validation/multi).
_MACHINES: tuple[tuple[str, Gpu | str, float, float, int, int], ...] = (
    ("GB300", _GB300, 1800, 800, 72, 72),
    ("GB200", _GB200, 1800, 400, 72, 72),
    ("B300", _B300, 1800, 800, 8, 8),
    ("B200", "b200-180g", 1800, 400, 8, 8),
    ("H200", "h200-141g", 900, 400, 8, 8),
    ("H20", "h20-96g", 900, 400, 8, 8),
    ("H100", "h100-80g", 900, 400, 8, 8),
    ("H800", "h800-80g", 400, 400, 8, 8),
    ("A800", "a800-80g", 400, 200, 8, 8),
    ("A100-40", "a100-40g", 600, 200, 8, 8),
    ("A100", "a100-80g", 600, 200, 8, 8),
    ("L40S", "l40s-48g", 64, 100, 1, 8),
    ("4090", "rtx4090-24g", 64, 100, 1, 8),
    ("RTX PRO 6000", "rtxpro6000-96g", 128, 100, 1, 8),
    ("A6000", "a6000-48g", 64, 100, 1, 8),
    ("V100-32", "v100-32g", 300, 100, 4, 8),
)


def machine_name(hardware: str) -> str:
    """Return the name of the GPU, in any spelling of a source."""
    name = hardware.upper().replace("_", "-")
    return next((entry[0] for entry in _MACHINES if entry[0] in name), hardware)


def published_gpu(hardware: str) -> Gpu:
    """Return the GPU of a row. Raises NotModelled if it is not listed."""
    name = machine_name(hardware)
    for entry, gpu, *_ in _MACHINES:
        if entry == name:
            return gpus()[gpu] if isinstance(gpu, str) else gpu
    raise NotModelled(f"hardware: {hardware}")


def _stated_ports(hardware: str, source: str) -> tuple[float, int] | None:
    """Return the Gbit/s of a port and the ports of a node that the row states; None if it states none."""
    omni_path = re.search(r"(\d+) X OMNI-PATH", hardware)
    if omni_path:
        # Omni-Path 100 (https://www.cornelisnetworks.com): 100 Gbit/s a port.
        return 100, int(omni_path[1])
    stated = re.search(r"(\d+) X (\d+) GBIT/S", hardware)
    if stated:
        return float(stated[2]), int(stated[1])
    return (200, 4) if source.startswith("vTrain") else None


DYNAMIC_SCALING = {"rowwise": 0.20, "tensorwise": 0.55, "mxfp8": 0.45}
"""Share of that gain which torchao's FP8 training reaches: it computes the scales in every product, and rowwise scales
need a slower kernel. From the whole-run gains that its documentation publishes for Llama 3.1 8B: 10, 25 and 20 %
(pytorch/ao docs/source/workflows/training.md). Transformer Engine's recipes reach the whole gain."""


def published_machine(hardware: str, source: str, *, fp8: bool = False, notes: str = "") -> Machine:
    """Return the machine of a row. Raises NotModelled if it is not listed."""
    hardware_name = hardware.upper().replace("_", "-")
    for name, gpu, link, port, ports, node in _MACHINES:
        if name in hardware_name:
            gpu_preset = gpus()[gpu] if isinstance(gpu, str) else gpu
            port, ports = _stated_ports(hardware_name, source) or (port, ports)
            stated_node = re.search(r"(\d+) GPUS A NODE", hardware_name)
            if stated_node:
                node = ports = int(stated_node[1])
            cluster = Cluster(
                gpu=gpu_preset.key or "b200-180g",
                nodes=1,
                gpus_per_node=node,
                intra_node_gb_per_s=link,
                inter_node_gbit_per_s=port,
                nics_per_node=ports,
            )
            machine = machine_of(cluster, gpu_preset)
            if machine is None:
                break
            if "HBM2E" in hardware_name:
                # 96 GB H100 with HBM2e: 2.4 TB/s and 500 W, https://github.com/pytorch/torchtitan benchmarks.
                machine = replace(machine, memory=MEMORY_SHARE * 2.4e12, power=500)
            if not fp8:
                return machine
            if gpu_preset.fp8_over_bf16 is None:
                raise NotModelled("FP8 on a GPU without it")
            share = next((share for name, share in DYNAMIC_SCALING.items() if name in notes), 1.0)
            return with_fp8_products(machine, gpu_preset, share)
    raise NotModelled(f"hardware: {hardware}")
