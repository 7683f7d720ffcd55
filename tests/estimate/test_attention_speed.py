"""The speed of attention follows the kernel that an engine is asked for, and the GPU's generation."""

from dataclasses import replace
from math import exp

import pytest

from backend.estimate.estimate import estimate
from backend.estimate.memory.stage import Trained
from backend.estimate.model.lengths import masked_share
from backend.estimate.model.load import Load
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.estimate.time.attention_time import attention_seconds
from backend.estimate.time.efficiency import default_efficiency, machine_of
from backend.estimate.time.kernels import layer_kernels
from backend.estimate.time.step_time import kind_passes
from backend.estimate.time.time_context import Execution, TimeContext
from backend.job.attention import attention_kind as attention_kind_of
from backend.job.cluster import Cluster
from backend.job.job import Model
from backend.job.memory_traits import MEGATRON_LM_MEMORY
from backend.job.presets import gpus, resolve_model
from benchmarks.habits import attention_kind
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
        plan = replace(PLAN, sequence_length=16384, attention="scores")
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
        ({"source": "torchtitan issue", "hardware": "H100", "notes": "FSDP2"}, "fused"),
        ({"source": "ml-engineering: GPUs", "hardware": "B200"}, "flash_3"),
        ({"source": "a", "notes": "FlashAttention 2"}, "fused"),
    ],
)
def test_a_published_row_names_its_kernel(row, kernel):
    assert attention_kind(row) == kernel


@pytest.mark.parametrize(
    ("gpu", "asked", "kind"),
    [
        ("h100-80g", "flash_attention_3", "flash_3"),
        ("h100-80g", "flash_attention_4", "flash_3"),
        ("b200-180g", "flash_attention_4", "flash_3"),
        # The kernels that FlashAttention 3 and 4 have for these GPUs use the instructions of FlashAttention 2's.
        ("a100-80g", "flash_attention_3", "flash_2"),
        ("a100-80g", "flash_attention_4", "flash_2"),
        ("l40s-48g", "flash_attention_3", "flash_2"),
        ("rtx5090-32g", "flash_attention_4", "flash_2"),
        ("a100-80g", "flash_attention_2", "flash_2"),
        ("a100-80g", None, "sdpa"),
        ("v100-32g", None, "math"),
        ("a100-80g", "eager", "scores"),
    ],
)
def test_a_gpu_runs_the_kernels_that_it_has(gpu, asked, kind):
    extra = {"attn_impl": asked} if asked else {}
    tried = job(QWEN, engine="swift-zero3", cluster__gpu=gpu, training__precision="fp16", extra=extra)
    assert attention_kind_of(tried, resolve_model(tried.model), gpus()[gpu]) == kind


def test_flash_attention_3_is_as_fast_as_2_on_ampere():
    asked = (seconds(HUGGING_FACE, "a100-80g", attn_impl=f"flash_attention_{version}") for version in (2, 3))
    assert next(asked) == next(asked)


@pytest.mark.parametrize("engine", ["llamafactory-megatron", "swift-megatron"])
def test_transformer_engine_has_no_fused_attention_before_ampere(engine):
    """Its attention is unfused whatever says that such a GPU computes in bf16."""
    tried = job(QWEN, engine=engine, training__precision="fp16")
    turing = replace(gpus()["v100-32g"], compute_capability=7.5, supports_bf16=True)
    assert attention_kind_of(tried, resolve_model(tried.model), turing) == "scores"


def core_s(preset, gpu, attention, masked=0.0, length=4096):
    """Return the forward and backward seconds of the attention core of a layer."""
    machine = machine_of(Cluster(gpu=gpu, nodes=1, gpus_per_node=8), gpus()[gpu])
    run = Execution(memory=MEGATRON_LM_MEMORY, fused=False, megatron=False, masked=masked)
    plan = replace(PLAN, sequence_length=length, attention=attention)
    context = TimeContext(plan=plan, machine=machine, efficiency=default_efficiency(), run=run)
    kind = model_layers(resolve_model(Model(preset=preset))).kinds[0]
    return attention_seconds(layer_kernels(kind, fused=False), context, Load(tokens=length, length=length)), context


def test_shared_keys_run_as_the_math_kernel_without_flash_attention():
    """32 heads of 128: two products in fp32 over the whole square, and 34 bytes of each score forward (torch 2.13)."""
    (forward, backward), context = core_s("llama-3.1-8b", "v100-32g", "math")
    scores = 32 * 4096**2
    products, moved = 2 * 2 * 128 * scores / context.single_speed, scores / context.machine.memory
    assert forward == pytest.approx(products + 34 * moved, rel=0.02)
    assert backward == pytest.approx(2 * products + 28 * moved, rel=0.02)


def test_heads_with_keys_of_their_own_have_a_fused_kernel_without_flash_attention():
    fused, eager = (core_s("llama-2-7b", "v100-32g", kind)[0] for kind in ("math", "scores"))
    assert fused[0] < 0.5 * eager[0]
    assert fused == core_s("llama-2-7b", "v100-32g", "sdpa")[0]


def test_sdpa_computes_the_whole_square_with_a_mask_and_flash_attention_does_not():
    """torch 2.13 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp check_for_attn_mask."""
    plain, half, whole = (core_s("llama-3.1-8b", "a100-80g", "sdpa", masked)[0] for masked in (0.0, 0.5, 1.0))
    assert half == pytest.approx([1.5 * seconds for seconds in plain])
    assert whole == pytest.approx([2 * seconds for seconds in plain])
    assert core_s("llama-3.1-8b", "a100-80g", "flash_2", 1.0)[0] == plain
    # With a mask no keys are shared, so that the math kernel does not run.
    assert core_s("llama-3.1-8b", "v100-32g", "math", 1.0)[0] == core_s("llama-3.1-8b", "v100-32g", "sdpa", 1.0)[0]


@pytest.mark.parametrize(("length", "kind", "keys"), [
    (512, "sdpa", 256), (1024, "sdpa", 1024), (4096, "sdpa", 4096), (4096, "flash_2", 1024), (512, "flash_2", 256),
])  # fmt: skip
def test_sdpa_has_a_mask_for_a_window_that_is_no_longer_than_the_sequence(length, kind, keys):
    """Gemma 3's window of 1,024 tokens (transformers 5.6.0 masking_utils.py _ignore_causal_mask_sdpa)."""
    (forward, _), context = core_s("gemma-3-12b", "a100-80g", kind, length=length)
    flops = 2 * 16 * (256 + 256) * length * keys
    assert forward == pytest.approx(flops / context.flash_attention_speed)


@pytest.mark.parametrize(
    ("engine", "micro_batch", "values", "share"),
    [
        ("swift-zero3", 1, {}, 0),
        ("llamafactory-zero3", 1, {}, 7 / 8 * (1 - exp(-2))),
        ("llamafactory-zero3", 1, {"training.stage": "pt"}, 0),
        ("swift-zero3", 2, {}, 1 - exp(-4)),
        ("llamafactory-zero3", 2, {}, 1 - exp(-4)),
        ("llamafactory-zero3", 2, {"training.sample_tokens": None}, 0),
        ("llamafactory-zero3", 2, {"training.packing": True}, 0),
        ("llamafactory-zero3", 1, {"training.packing": True, "extra": {"neat_packing": True}}, 1),
    ],
)
def test_a_micro_batch_with_padding_has_a_mask(engine, micro_batch, values, share):
    lengths = {"training.cutoff_len": 4096, "training.sample_tokens": 2048, "training.micro_batch_size": micro_batch}
    assert masked_share(job(QWEN, lengths, values, engine=engine)) == pytest.approx(share)
