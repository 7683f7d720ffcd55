"""Measurements of the job's own cluster, as the formulas use them. No other module reads a calibration."""

from dataclasses import replace

from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.time.efficiency import Efficiency, Machine, default_efficiency, level_on
from backend.job.cluster import Cluster
from backend.job.job import Job
from backend.job.presets import efficiency_figures, intervals, resolve_model


def efficiency_on(cluster: Cluster, machine: Machine) -> Efficiency:
    """Return the efficiency constants, with measured values for communication where the cluster has them.

    The formulas take the bus bandwidth of an all-reduce for the speed of its ring, which is the hardware figure times a
    share (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). A share above 1 means that the link's
    figure in the job file is too low.
    """
    calibration = cluster.calibration
    measured = {}
    if calibration.holds_for(cluster.gpu):
        if calibration.intra_node_bus_gb_per_s:
            measured["link_share"] = 1e9 * calibration.intra_node_bus_gb_per_s / machine.link
        if calibration.inter_node_bus_gb_per_s:
            measured["network_share"] = 1e9 * calibration.inter_node_bus_gb_per_s / machine.network
    return replace(default_efficiency(), **measured) if measured else default_efficiency()


def is_timed(cluster: Cluster) -> bool:
    """Return whether a measured run corrects the times. The run must be on this GPU and with the current constants."""
    calibration = cluster.calibration
    if calibration.time_ratio is None or not calibration.holds_for(cluster.gpu):
        return False
    return calibration.constants in (None, efficiency_figures().version)


def time_ratio(cluster: Cluster, machine: Machine) -> float:
    """Return the factor of every time of the formulas: that of a measured run, else the level of the cluster's stack.

    The formulas give the times of a tuned stack. The factor is the same for all engines, so that their plans stay
    comparable.
    """
    if is_timed(cluster):
        return cluster.calibration.time_ratio or 1.0
    level = intervals().level[cluster.stack]
    return level if cluster.stack == "tuned" else level_on(machine, level)


def reserved_ratio(job: Job) -> float | None:
    """Return reserved memory over the estimated allocator peak; None without a run of this engine and training.

    In published runs, a ratio corrects other plans of the same training, but other lengths no better than no ratio.
    """
    calibration = job.cluster.calibration
    if calibration.memory_ratio is None or not calibration.holds_for(job.cluster.gpu):
        return None
    is_of_this = calibration.engine == job.engine and calibration.training in (None, training_of(job))
    return calibration.memory_ratio if is_of_this else None


def training_of(job: Job) -> str:
    """Return what a job trains, as a calibration stores it: parameters of the model, method, cutoff_len, and FP8."""
    parameters = model_parameters(model_layers(resolve_model(job.model)))
    fp8 = " fp8" if job.has_fp8_products else ""
    return f"{parameters} {job.training.method} {job.training.cutoff_len}{fp8}"


def is_of_this_training(job: Job) -> bool:
    """Return whether the run that calibrated the cluster trained what the job trains. Another plan may do it."""
    known = job.cluster.calibration.training
    return known is not None and known == training_of(job)


def calibrated_on(job: Job) -> str | None:
    """Return the run whose measurements correct the job's figures; None if there is none."""
    corrected = is_timed(job.cluster) or reserved_ratio(job) is not None
    return job.cluster.calibration.run if corrected else None


def probed_on(cluster: Cluster) -> str | None:
    """Return the date of the benchmark whose speeds are in the figures; None if there is none."""
    calibration = cluster.calibration
    speeds = (calibration.matmul_tflops, calibration.intra_node_bus_gb_per_s, calibration.inter_node_bus_gb_per_s)
    return calibration.probe_date if any(speeds) and calibration.holds_for(cluster.gpu) else None
