"""The speed of attention follows the kernel that an engine is asked for, and the GPU's generation."""

from dataclasses import replace

import pytest

from backend.estimate.estimate import estimate
from backend.estimate.memory.stage import Trained
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.estimate.time.efficiency import default_efficiency, machine_of
from backend.estimate.time.step_time import kind_passes
from backend.estimate.time.time_context import Execution, TimeContext
from backend.job.cluster import Cluster
from backend.job.job import Model
from backend.job.memory_traits import MEGATRON_LM_MEMORY
from backend.job.presets import gpus, resolve_model
from benchmarks.habits import attention_kernel
from tests.estimate.cases import TP2_PP2_VPP2, job

LONG = {"training.cutoff_len": 32768, "training.packing": True, "training.micro_batch_size": 1}
QWEN = {"model.preset": "qwen3-8b"}
HUGGING_FACE = QWEN | LONG | {"engine": "swift-fsdp", "cluster.nodes": 1}


PLAN = Plan(sequence_length=4096, micro_batch=1, micro_batches=1)


def speeds(gpu):
    machine = machine_of(Cluster(gpu=gpu, nodes=1, gpus_per_node=8), gpus()[gpu])
    run = Execution(memory=MEGATRON_LM_MEMORY)
    return TimeContext(plan=PLAN, machine=machine, efficiency=default_efficiency(), run=run)


def test_flash_attention_2_reaches_353_tflops_on_blackwell():
    """Its instructions are those of the A100. A forward and a backward pass of 2 x 8,192 tokens took 10.9 ms on a B300
    (https://github.com/whitecircle/halo agent-docs/optimization/flash-attention.md)."""
    flops = 3.5 * 4 * 2 * 8192**2 * 32 * 128 / 2
    assert speeds("b200-180g").flash_attention_speed == pytest.approx(flops / 10.9e-3, rel=0.03)


@pytest.mark.parametrize(("gpu", "tflops"), [("h200-141g", 620), ("b200-180g", 1260)])
def test_flash_attention_3_and_4_reach_what_long_steps_give(gpu, tflops):
    """https://github.com/stas00/ml-engineering insights/when-to-upgrade-gpus: 419 and 852 TFLOP/s at 262,144 tokens."""
    assert speeds(gpu).newest_attention_speed == pytest.approx(1e12 * tflops, rel=0.05)


def test_linear_attention_is_as_fast_as_before_on_every_gpu():
    """Its kernels use a GPU's own instructions; on Hopper and on the A100 they have FlashAttention 2's speed."""
    for gpu in ("a100-80g", "h100-80g"):
        assert speeds(gpu).recurrence_speed == speeds(gpu).flash_attention_speed
    blackwell = speeds("b200-180g")
    assert blackwell.recurrence_speed > 2 * blackwell.flash_attention_speed


def seconds(values, gpu="b200-180g", **extra):
    asked = job(**{**values, "cluster.gpu": gpu, "extra": extra})
    figures = estimate(asked)
    assert figures.iteration_s
    return figures.iteration_s


def test_a_job_with_flash_attention_4_is_faster_on_blackwell():
    """Qwen3-4B at 32,768 tokens: 17,504 tokens a second against 7,497 (the same page)."""
    asked, newest = (
        seconds(HUGGING_FACE, attn_impl="flash_attention_2"),
        seconds(HUGGING_FACE, attn_impl="flash_attention_4"),
    )
    assert 1.6 < asked / newest < 2.6


def test_megatron_of_ms_swift_runs_the_flash_attention_that_it_is_asked_for():
    values = QWEN | LONG | TP2_PP2_VPP2 | {"engine": "swift-megatron"}
    kernels = ("flash_3", "flash_4", "fused", "flash_2")
    newest, newest_too, fused, second = (seconds(values, "h100-80g", attention_backend=name) for name in kernels)
    assert newest == newest_too < fused < second


def test_eager_attention_of_transformers_moves_more_than_unfused_attention_of_megatron():
    """5.6.0 modeling_llama.py scales, masks and casts whole score matrices, and its softmax is in fp32."""
    machine = machine_of(Cluster(gpu="h100-80g", nodes=1, gpus_per_node=8), gpus()["h100-80g"])
    times = []
    for fused in (True, False):
        run = Execution(memory=MEGATRON_LM_MEMORY, fused=fused, megatron=fused)
        plan = replace(PLAN, sequence_length=16384, flash_attention=False)
        context = TimeContext(plan=plan, machine=machine, efficiency=default_efficiency(), run=run)
        layers = model_layers(resolve_model(Model(preset="llama-3.1-8b")))
        times.append(kind_passes(layers, context, Trained()).kinds[0].forward.compute)
    entries = 32 * 16384**2
    assert times[1] - times[0] > 0.9 * (24 - 13) * entries / machine.memory


@pytest.mark.parametrize(
    ("row", "kernel"),
    [
        ({"source": "a", "notes": "FSDP 2, FlashAttention 3 #1"}, "flash_3"),
        ({"source": "a", "notes": "attention of Transformer Engine"}, "cudnn"),
        ({"source": "torchtitan issue", "hardware": "B200", "notes": "FSDP2"}, "cudnn"),
        ({"source": "torchtitan issue", "hardware": "H100", "notes": "FSDP2"}, None),
        ({"source": "ml-engineering: GPUs", "hardware": "B200"}, "flash_3"),
        ({"source": "a", "notes": "FlashAttention 2"}, None),
    ],
)
def test_a_published_row_names_its_kernel(row, kernel):
    assert attention_kernel(row) == kernel
