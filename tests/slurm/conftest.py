"""A Slurm cluster for each test, and a server that reaches only its login node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster, slurm_cluster, why_not


@pytest.fixture(scope="session")
def missing() -> str:
    """Return what is missing for a Slurm cluster on this machine; empty if it can run."""
    return why_not()


@pytest.fixture
def slurm(tmp_path: Path, missing: str) -> Iterator[SlurmCluster]:
    if missing:
        pytest.skip(missing)
    with slurm_cluster(tmp_path / "slurm") as cluster:
        yield cluster
