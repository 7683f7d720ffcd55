"""A job in FP8 computes its matrix products faster, where the engine and the GPU can."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.estimate.interval import time_interval
from backend.estimate.time.calibrated import training_of
from backend.estimate.time.efficiency import machine_of_job
from backend.job.cluster import Calibration
from backend.job.mapping import with_values
from backend.job.presets import gpus, intervals, resolve_gpu
from tests.estimate.cases import NO_IMAGES, job

DENSE = {"model.preset": "llama-3.1-8b", **NO_IMAGES}
HYBRID = {"extra": {"fp8": "hybrid"}}
SWIFT = {"engine": "swift-megatron", "extra": {"fp8_format": "hybrid", "fp8_recipe": "blockwise"}}
A100 = {"cluster.gpu": "a100-80g"}


def seconds(*edits: dict[str, object]) -> float:
    figure = estimate(job(DENSE, *edits)).iteration_s
    assert figure is not None
    return figure


@pytest.mark.parametrize(("engine", "fp8"), [({}, HYBRID), ({"engine": "swift-megatron"}, SWIFT)])
def test_fp8_shortens_a_step_by_less_than_the_gain_of_its_products(engine, fp8):
    gain = gpus()["h100-80g"].fp8_over_bf16
    assert gain is not None
    assert 1.2 < seconds(engine) / seconds(fp8) < gain


def test_fp8_gains_nothing_on_a_gpu_without_a_measured_fp8_product():
    assert seconds(A100, HYBRID) == seconds(A100)


def test_hugging_face_engines_stay_in_16_bits():
    fsdp = {"engine": "llamafactory-fsdp"}
    assert seconds(fsdp, {"extra": {"fp8": True}}) == seconds(fsdp)


def test_times_in_fp8_have_the_interval_of_published_fp8_runs_until_a_run_in_fp8_calibrates_them():
    fp8 = job(DENSE, HYBRID)
    in_16_bits = Calibration(run="r", engine=fp8.engine, time_ratio=1.1, training=training_of(job(DENSE)))
    in_fp8 = replace(in_16_bits, training=training_of(fp8))
    assert training_of(fp8) == f"{training_of(job(DENSE))} fp8"
    assert time_interval(fp8) == intervals().time["fp8"]
    assert time_interval(with_values(fp8, {"cluster.calibration": in_16_bits})) == intervals().time["fp8"]
    assert time_interval(with_values(fp8, {"cluster.calibration": in_fp8})) == intervals().time["calibrated_megatron"]


def test_a_measured_product_in_16_bits_is_scaled_by_the_same_gain():
    measured = {"cluster.calibration": Calibration(gpu="h100-80g", matmul_tflops=600.0)}
    fp8 = job(DENSE, measured, HYBRID)
    machine = machine_of_job(fp8, resolve_gpu(fp8.cluster))
    assert machine is not None
    assert machine.gemm == pytest.approx(600e12 * 1.765)


def test_attention_beside_fp8_products_stays_in_16_bits_on_hopper():
    shares = {
        gpu: machine_of_job(tried, resolve_gpu(tried.cluster)).attention_over_peak  # type: ignore[union-attr]
        for gpu in ("h100-80g", "b200-180g")
        if (tried := job(DENSE, HYBRID, {"cluster.gpu": gpu}))
    }
    assert shares == {"h100-80g": 0.5, "b200-180g": 1.0}
    long = {"training.cutoff_len": 65536, "parallel.context": 8, "training.global_batch_size": 64}
    short_gain, long_gain = (seconds(edits) / seconds(edits, HYBRID) for edits in ({}, long))
    assert 1 < long_gain < short_gain
