"""The newest benchmark of a server, until the user saves it."""

from dataclasses import dataclass

from backend.job.cluster import Calibration, Host


@dataclass(frozen=True, slots=True)
class HostsCalibration:
    """A calibration, and the hosts on which it was measured."""

    calibration: Calibration
    hosts: tuple[Host, ...]


@dataclass(slots=True)
class LastBenchmark:
    """The newest benchmark of a server, shared by all pages."""

    result: HostsCalibration | None = None
