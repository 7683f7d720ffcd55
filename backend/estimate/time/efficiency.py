"""Speeds of a machine: hardware figures of the cluster, and the constants that relate them to real runs.

The constants are the same for every model, plan, GPU and network. benchmarks/fit.py fits them on half of the published
runs in this project, and writes them with their errors to presets/efficiency.yaml.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Literal

from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.job.cluster import Cluster
from backend.job.job import Job
from backend.job.presets import Gpu, efficiency_figures

HOST_MEMORY_GB_PER_S = 300.0
"""Host memory bandwidth of a node, for an optimizer that runs on the CPU. It is assumed: eight to twelve channels of
DDR4 or DDR5 per socket."""

MEMORY_SHARE = 0.9
"""Share of the vendor's memory bandwidth that kernels reach. Measured: 0.88 on an A100 of 80 GB, of at most 0.9 by any
kernel (https://forums.developer.nvidia.com/t/trouble-to-reach-peak-bandwidth-of-a100/339083); 0.88 to 0.92 on a V100
(https://github.com/te42kyfo/gpu-benches, scale and triad); 0.91 on an RTX 4090
(https://github.com/binbinsh/gpu-bench, copy). The published runs of the fit do not determine it: with 0.9 and with 1
their error is the same, because other constants make up for it. It decides how eager modules, which move many bytes,
compare with fused ones."""

UNMEASURED_GEMM = 0.8
"""Share of the best matrix product in the peak, for GPUs without a measurement in presets/gpus.yaml: that of an
H100."""

HALF_OVER_SINGLE = 16
"""Peak of 16-bit products over that of fp32 without tensor cores, for GPUs whose fp32 peak is unknown: that of an A100
(312 against 19.5 TFLOP/s)."""

START_S = 3.3e-6
"""Seconds on the GPU of the start of a kernel whose bytes are counted apart. The efficiency's kernel_s is longer: it
also holds what large products lose in waves of tiles that are not full. 80 small kernels took 260 us where the host
started each (https://cuda.juliagpu.org/dev/usage/graphs/)."""

MODULE_START = 0.55
"""Host time of one operation of Hugging Face's modules, as a share of host_s, which is one start in Transformer
Engine's modules: they run more Python for each kernel. An operation takes 24 us, or 28 us at the level of users. We
measured 24 to 42 us in steps of 2,048 tokens on one H200 (benchmarks/data/own_h200.json). Qwen's LoRA of 256 tokens on
one A100 took 21 us."""

LOOPED_START = 0.32
"""Time of one product in torch's loop over experts, as a share of one operation of Hugging Face's modules: the loop is
C++. For 128 experts with a token of 16 values each, torch 2.13's _grouped_mm takes 1.4 us of CPU time for an expert,
and a Python loop of torch.nn.functional.linear 4.3 us (one thread, best of 200)."""

FETCH_STARTS = 6
"""Host time, in kernel starts, in which the host gathers a module's weights before a pass and frees them after it.
DeepSpeed's ZeRO-3 (runtime/zero/parameter_offload.py, partitioned_param_coordinator.py) takes 150 us for both in
0.18.4 on a CPU, where they are pure Python, and a kernel start takes 20 us. Published full fine-tuning of Qwen-1.8B
gives 6.2."""


@frozen_dataclass
class Efficiency:
    """Global constants. None of them depends on a model, a plan or a source; shares are of a hardware figure.

    The share of the memory bandwidth is measured, not fitted (MEMORY_SHARE).
    """

    product_share: float
    """Share of the best matrix product that the shapes of layers reach."""
    attention_share: float
    """Share of the peak in Transformer Engine's attention: cuDNN's kernels on Hopper and later (its
    pytorch/attention/dot_product_attention/utils.py prefers them there)."""
    flash_attention_share: float
    """Share in FlashAttention 2 and torch's own attention, which Hugging Face's modules call. It is of the peak of
    their instructions, or of the speed under the power limit if that is lower."""
    decline: float
    """Exponent of the slowdown by the power limit when all GPUs are busy for long: the speed of matrix products and
    attention is proportional to (watts per FLOP/s over those of an A100) to this power."""
    kernel_s: float
    """Overhead of each kernel on the GPU: launch, ramp, tail."""
    host_s: float
    """Time of the host to start one kernel of Transformer Engine's modules, with Python and autograd."""
    link_share: float
    """Share of the bandwidth inside a node that collectives reach."""
    network_share: float
    """Share of the bandwidth of the network ports that collectives reach."""
    overlap_share: float
    """Share of overlapped communication that is hidden."""

    def sustained(self, machine: "Machine") -> float:
        """Return the share of the speed that remains under the power limit; 1 on an A100."""
        return min(1.0, float((machine.power / machine.peak / A100_POWER) ** self.decline))


A100_POWER = 400 / 312e12
"""Watts per FLOP/s."""

PRODUCTS_SHARE = 0.65
"""Share of a step's time that products and attention take on a GPU that the power limit slows: the median of 24
published sources (half of them between 0.57 and 0.70)."""


def relief(machine: "Machine") -> float:
    """Return the factor of a step's time on a GPU whose power limit slows nothing, over that of a tuned stack.

    Formulas of a tuned stack slow products and attention by the power limit. Runs that keep the GPU less busy draw less
    power: H100 at 30 % of their peak ran at 1,905 to 1,980 MHz
    (https://github.com/MakazhanAlpamys/Soup/blob/main/benchmarks/gate-h100-validation.md); the peak is that of
    1,830 MHz (https://github.com/stas00/ml-engineering/blob/master/compute/accelerator/README.md).
    """
    return float(default_efficiency().sustained(machine) ** PRODUCTS_SHARE)


def level_on(machine: "Machine", level: float) -> float:
    """Return the factor of the times of users' stacks: that of a GPU without a power limit, with relief, at least 1."""
    return max(1.0, level * relief(machine))


def assumed_power(peak: float) -> float:
    """Return the watts of a GPU of which only the peak is known, by the trend of A100, H100 and B200."""
    return float(400 * (peak / 312e12) ** 0.5)


@lru_cache(maxsize=1)
def default_efficiency() -> Efficiency:
    """Return the fitted constants."""
    return Efficiency(**efficiency_figures().constants)


@frozen_dataclass
class Machine:
    """Speeds of one GPU and its connections in SI units, one direction; before any efficiency, unless stated."""

    gemm: float
    """FLOP/s of the best matrix product."""
    single: float
    """The same in fp32, without tensor cores."""
    peak: float
    """FLOP/s."""
    mma_sync: float
    """FLOP/s of the instructions that FlashAttention 2 uses."""
    power: float
    """Power limit of the GPU in watts."""
    memory: float
    """Bytes/s that kernels reach (MEMORY_SHARE)."""
    link: float
    """Bytes/s to GPUs of the same node."""
    network: float
    """Bytes/s to other nodes: a GPU's share of the node's ports."""
    host: float
    """Bytes/s to host memory."""
    node: int
    """GPUs of a node."""
    multicast: bool = False
    """Whether the switch in a node adds up the data of its GPUs (NVLink SHARP)."""
    warm: bool = False
    """Whether `gemm` was measured while all GPUs were busy, so that the power limit is already in it."""
    attention_over_peak: float = 1.0
    """Peak of the products of attention over `peak`: 0.5 if those of linear layers are in FP8 and attention is not."""

    @property
    def attention_peak(self) -> float:
        """Return the peak FLOP/s of the products of attention."""
        return self.attention_over_peak * self.peak


def with_fp8_products(machine: Machine, gpu: Gpu, share: float = 1.0) -> Machine:
    """Return the machine with the products of linear layers in FP8, which gain this share of the GPU's FP8 speed.

    The peak is twice as high, and an FP8 FLOP takes half the energy. Attention stays in 16 bits: `fp8_dpa = False` in
    each recipe of NVIDIA/TransformerEngine d0067d0 (transformer_engine/common/recipe/__init__.py),
    `fp8_dot_product_attention = False` in NVIDIA/Megatron-LM d98e8a6 (megatron/core/transformer/transformer_config.py),
    and torchao swaps linear layers only (https://docs.pytorch.org/ao/main/api_reference/generated/
    torchao.float8.convert_to_float8_training.html).
    """
    gain = 1 + ((gpu.fp8_over_bf16 or 1.0) - 1) * share
    attention = 1.0 if gpu.fast_fp8_attention else 0.5
    return replace(
        machine,
        gemm=machine.gemm * gain,
        peak=2 * machine.peak,
        power=2 * machine.power,
        attention_over_peak=attention,
    )


def machine_of_job(job: Job, gpu: Gpu) -> Machine | None:
    """Return the machine in the precision of a job; None if the GPU's speed in it is unknown.

    Transformer Engine's recipes are taken to reach the whole gain of the best FP8 product.
    """
    machine = machine_of(job.cluster, gpu, job.training.precision)
    if machine is None or not job.has_fp8_products or gpu.fp8_over_bf16 is None:
        return machine
    return with_fp8_products(machine, gpu)


def machine_of(cluster: Cluster, gpu: Gpu, precision: Literal["bf16", "fp16", "fp32"] = "bf16") -> Machine | None:
    """Return the machine of a cluster; None if the GPU's speed in this precision is unknown.

    A speed that the benchmark measured on the cluster replaces the preset's figure. It also replaces the peak where no
    peak is known.
    """
    single = precision == "fp32"
    peak = gpu.fp32_tflops if single else gpu.bf16_tflops
    measured = _measured_gemm_tflops(cluster, single=single)
    best = measured or (None if single else gpu.matmul_tflops)
    if peak is None and best is None:
        return None
    peak_flops = 1e12 * (peak or best or 0.0)
    return Machine(
        gemm=1e12 * (best or UNMEASURED_GEMM * (peak or 0.0)),
        single=UNMEASURED_GEMM * (1e12 * gpu.fp32_tflops if gpu.fp32_tflops else peak_flops / HALF_OVER_SINGLE),
        peak=peak_flops,
        mma_sync=peak_flops * gpu.mma_sync_share,
        power=gpu.power_w or assumed_power(peak_flops),
        memory=1e9 * MEMORY_SHARE * gpu.hbm_gb_per_s,
        link=1e9 * cluster.intra_node_gb_per_s / 2,
        network=1e9 / 8 * cluster.inter_node_gbit_per_s * cluster.nics_per_node / cluster.gpus_per_node,
        host=1e9 * gpu.host_gb_per_s,
        node=cluster.gpus_per_node,
        multicast=gpu.nvlink_sharp,
        warm=measured is not None,
    )


def _measured_gemm_tflops(cluster: Cluster, *, single: bool) -> float | None:
    """Return the measured TFLOP/s of a matrix product in this precision; None if there is none."""
    calibration = cluster.calibration
    if not calibration.holds_for(cluster.gpu) or (calibration.matmul_precision == "fp32") != single:
        return None
    return calibration.matmul_tflops
