"""What was measured on the job's own cluster, in the terms of the formulas: the one place that reads a calibration."""

from dataclasses import replace

from backend.estimate.time.efficiency import Efficiency, Machine, default_efficiency
from backend.job.cluster import Cluster
from backend.job.job import Job
from backend.job.presets import efficiency_figures


def efficiency_on(cluster: Cluster, machine: Machine) -> Efficiency:
    """The constants, with those of communication as the probe measured them on this cluster.

    The bus bandwidth of an all-reduce is what the formulas take for the speed of its ring: figure times share
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). A share above 1 says that the figure of the
    link in the job file is too low.
    """
    known = cluster.calibration
    measured = {}
    if known.holds_for(cluster.gpu):
        if known.intra_node_bus_gb_per_s:
            measured["link_share"] = 1e9 * known.intra_node_bus_gb_per_s / machine.link
        if known.inter_node_bus_gb_per_s:
            measured["network_share"] = 1e9 * known.inter_node_bus_gb_per_s / machine.network
    return replace(default_efficiency(), **measured) if measured else default_efficiency()


def is_timed(cluster: Cluster) -> bool:
    """Whether a measured run corrects the times: of this GPU, against the constants that are in use."""
    known = cluster.calibration
    if known.time_ratio is None or not known.holds_for(cluster.gpu):
        return False
    return known.constants in (None, efficiency_figures().version)


def time_ratio(cluster: Cluster) -> float:
    """What every estimated time is multiplied by, for all engines alike, so that their plans stay comparable.

    1 without a measured run.
    """
    return cluster.calibration.time_ratio or 1.0 if is_timed(cluster) else 1.0


def reserved_ratio(job: Job) -> float | None:
    """Memory that torch reserved over the allocator's estimated peak; None where this engine was not measured."""
    known = job.cluster.calibration
    return known.memory_ratio if known.holds_for(job.cluster.gpu) and known.engine == job.engine else None


def calibrated_on(job: Job) -> str | None:
    """The run whose measurements are in the job's figures; None where there is none."""
    corrected = is_timed(job.cluster) or reserved_ratio(job) is not None
    return job.cluster.calibration.run if corrected else None


def probed_on(cluster: Cluster) -> str | None:
    """The date of the probe whose speeds are in the figures; None where there is none."""
    known = cluster.calibration
    speeds = (known.matmul_tflops, known.intra_node_bus_gb_per_s, known.inter_node_bus_gb_per_s)
    return known.probe_date if any(speeds) and known.holds_for(cluster.gpu) else None
