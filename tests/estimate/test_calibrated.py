"""Measured values of a cluster replace assumed ones, and nothing else."""

import pytest

from backend.estimate import estimate, to_json
from backend.estimate.plan import Plan
from backend.estimate.time.calibrated import calibrated_on, efficiency_on, probed_on, reserved_ratio, time_ratio
from backend.estimate.time.communication import Group, ring_seconds
from backend.estimate.time.efficiency import default_efficiency, level_on, machine_of
from backend.estimate.time.time_context import Execution, TimeContext
from backend.job.cluster import Calibration, Cluster
from backend.job.job import Job
from backend.job.memory_traits import MEGATRON_LM_MEMORY
from backend.job.presets import calibration_figures, efficiency_figures, gpus, intervals, version_of
from tests.estimate.cases import job

GB = 1e9


MACHINE = machine_of(Cluster(gpu="h100-80g", nodes=1, gpus_per_node=8), gpus()["h100-80g"])
assert MACHINE is not None
LEVEL = level_on(MACHINE, intervals().level["as_run"])


def cluster_with(**measured: object) -> Cluster:
    return Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8, calibration=Calibration(**measured))  # type: ignore[arg-type]


def job_with(**measured: object) -> Job:
    return job({"cluster.calibration": Calibration(**measured)})  # type: ignore[arg-type]


def test_a_ring_inside_a_node_runs_at_the_measured_bus_bandwidth():
    cluster = cluster_with(intra_node_bus_gb_per_s=300.0)
    machine = machine_of(cluster, gpus()["h100-80g"])
    assert machine is not None
    efficiency = efficiency_on(cluster, machine)
    gathered = ring_seconds(8 * GB, Group(8, 1), machine, efficiency)
    assert gathered == pytest.approx(8 * (7 / 8) / 300)


def test_a_ring_of_counterparts_across_nodes_runs_at_the_measured_bus_bandwidth():
    cluster = cluster_with(inter_node_bus_gb_per_s=40.0)
    machine = machine_of(cluster, gpus()["h100-80g"])
    assert machine is not None
    efficiency = efficiency_on(cluster, machine)
    gathered = ring_seconds(8 * GB, Group(4, 8), machine, efficiency)
    assert gathered == pytest.approx(8 * (3 / 4) / 40)
    assert efficiency.link_share == default_efficiency().link_share


def test_the_measured_product_counts_in_its_own_precision_alone():
    cluster = cluster_with(matmul_tflops=600.0, matmul_precision="bf16")
    gpu = gpus()["h100-80g"]
    assert machine_of(cluster, gpu, "bf16").gemm == 600e12  # type: ignore[union-attr]
    assert machine_of(cluster, gpu, "fp16").gemm == 600e12  # type: ignore[union-attr]
    assert machine_of(cluster, gpu, "fp32") == machine_of(cluster_with(), gpu, "fp32")


def test_a_cpu_gets_its_speed_in_fp32_from_the_probe_alone():
    cpu = gpus()["cpu"]
    bare = Cluster(gpu="cpu", nodes=4, gpus_per_node=1)
    assert machine_of(bare, cpu, "fp32") is None
    measured = Cluster(
        gpu="cpu", nodes=4, gpus_per_node=1, calibration=Calibration(matmul_tflops=0.06, matmul_precision="fp32")
    )
    machine = machine_of(measured, cpu, "fp32")
    assert machine is not None
    assert machine.gemm == pytest.approx(0.06e12)


def test_nothing_of_another_gpu_is_used():
    other = job_with(
        gpu="a100-80g",
        run="r",
        engine="llamafactory-megatron",
        time_ratio=1.5,
        memory_ratio=2.0,
        probe_date="2026-11-21",
        matmul_tflops=250.0,
        intra_node_bus_gb_per_s=200.0,
        inter_node_bus_gb_per_s=20.0,
    )
    machine = machine_of(other.cluster, gpus()["h100-80g"])
    assert machine == machine_of(job().cluster, gpus()["h100-80g"])
    assert machine is not None
    assert efficiency_on(other.cluster, machine) == default_efficiency()
    assert time_ratio(other.cluster, MACHINE) == LEVEL
    assert (reserved_ratio(other), calibrated_on(other), probed_on(other.cluster)) == (None, None, None)


def test_time_is_corrected_for_every_engine_and_memory_for_the_measured_one():
    measured = {"gpu": "h100-80g", "run": "r", "time_ratio": 1.1, "memory_ratio": 1.2}
    ours = job_with(**measured, engine="llamafactory-megatron")
    theirs = job_with(**measured, engine="llamafactory-ddp")
    assert (time_ratio(ours.cluster, MACHINE), reserved_ratio(ours), calibrated_on(ours)) == (1.1, 1.2, "r")
    assert (time_ratio(theirs.cluster, MACHINE), reserved_ratio(theirs), calibrated_on(theirs)) == (1.1, None, "r")
    memory_alone = job_with(run="r", engine="llamafactory-ddp", memory_ratio=1.2)
    assert calibrated_on(memory_alone) is None


def test_a_ratio_to_an_estimate_with_older_constants_is_not_used():
    old = job_with(run="r", time_ratio=1.5, constants="2020-01-01-0123abcd")
    assert (time_ratio(old.cluster, MACHINE), calibrated_on(old)) == (LEVEL, None)
    assert time_ratio(job_with(run="r", time_ratio=1.5, constants=efficiency_figures().version).cluster, MACHINE) == 1.5


def test_constants_that_were_fitted_anew_on_the_same_day_are_others():
    known = efficiency_figures()
    anew = {**known.constants, "kernel_s": 2 * known.constants["kernel_s"]}
    assert version_of(known.constants, known.date) == known.version
    refitted = version_of(anew, known.date)
    assert refitted.startswith(known.date)
    assert time_ratio(job_with(run="r", time_ratio=1.5, constants=refitted).cluster, MACHINE) == LEVEL


def test_a_probe_is_named_by_its_day():
    assert probed_on(cluster_with(probe_date="2026-11-21", matmul_tflops=600.0)) == "2026-11-21"
    assert probed_on(cluster_with(probe_date="2026-11-21")) is None


def test_a_calibrated_estimate_is_corrected_and_says_by_what_and_how_far_such_times_are_off():
    bare = estimate(job(cluster__stack="tuned"))
    result = estimate(
        job_with(gpu="h100-80g", run="r-1", engine="llamafactory-megatron", time_ratio=1.25, memory_ratio=1.5)
    )
    assert result.iteration_s == pytest.approx(1.25 * bare.iteration_s)  # type: ignore[operator]
    assert result.tokens_per_s_per_gpu == pytest.approx(bare.tokens_per_s_per_gpu / 1.25)  # type: ignore[operator]
    assert sum(result.time_s.values()) == pytest.approx(result.iteration_s)  # type: ignore[union-attr]
    assert result.peak_gib == bare.peak_gib
    assert result.reserved_gib == pytest.approx(1.5 * bare.peak_gib)
    assert (result.calibrated_on, result.time_error) == ("r-1", calibration_figures().typical_error)
    assert (bare.calibrated_on, bare.probed_on) == (None, None)
    assert to_json(result)["calibrated_on"] == "r-1"


def test_a_memory_ratio_alone_leaves_the_error_of_the_times():
    result = estimate(job_with(gpu="h100-80g", run="r-1", engine="llamafactory-megatron", memory_ratio=1.05))
    assert result.calibrated_on == "r-1"
    assert result.time_error == estimate(job()).time_error


def test_nothing_declines_from_a_product_that_was_measured_on_busy_gpus():
    gpu = gpus()["h100-80g"]
    measured, assumed = machine_of(cluster_with(matmul_tflops=600.0), gpu), machine_of(cluster_with(), gpu)
    assert measured is not None
    assert assumed is not None
    assert (measured.warm, assumed.warm) == (True, False)
    speeds = [
        TimeContext(
            plan=Plan(sequence_length=1, micro_batches=1),
            machine=machine,
            efficiency=default_efficiency(),
            run=Execution(memory=MEGATRON_LM_MEMORY),
        ).gemm_speed
        for machine in (measured, assumed)
    ]
    assert speeds[0] == default_efficiency().product_share * 600e12
    assert speeds[1] < assumed.gemm
