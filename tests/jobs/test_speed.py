"""What a probe puts into the cluster's calibration."""

from backend.cluster.speed import Speeds
from backend.job.job import Calibration, Cluster, Job
from backend.jobs.speed import calibration_of

SPEEDS = Speeds(
    device="NVIDIA H100 80GB HBM3",
    precision="bf16",
    matmul_tflops=700.123456,
    intra_node_bus_gb_per_s=360.0,
    inter_node_bus_gb_per_s=None,
    sizes={},
    slow=(),
)


def job_with(**known: object) -> Job:
    return Job(cluster=Cluster(gpu="h100-80g", nodes=1, gpus_per_node=8, calibration=Calibration(**known)))  # type: ignore[arg-type]


def test_the_speeds_go_into_the_calibration_of_this_gpu():
    assert calibration_of(job_with(), SPEEDS, "2026-11-21") == Calibration(
        gpu="h100-80g",
        probe_date="2026-11-21",
        matmul_tflops=700.1,
        matmul_precision="bf16",
        intra_node_bus_gb_per_s=360.0,
    )


def test_a_time_ratio_of_an_estimate_with_other_speeds_goes_and_the_memory_ratio_stays():
    known = {"gpu": "h100-80g", "run": "r", "run_date": "2026-11-01", "engine": "llamafactory-ddp"}
    made = calibration_of(job_with(**known, time_ratio=1.2, memory_ratio=1.03), SPEEDS, "2026-11-21")
    assert (made.time_ratio, made.memory_ratio, made.run, made.engine) == (None, 1.03, "r", "llamafactory-ddp")


def test_nothing_of_another_gpu_stays():
    made = calibration_of(job_with(gpu="a100-80g", run="r", memory_ratio=1.03), SPEEDS, "2026-11-21")
    assert (made.gpu, made.memory_ratio, made.run) == ("h100-80g", None, None)
