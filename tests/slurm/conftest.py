"""A Slurm cluster for the tests of a module, or for one test that breaks it."""

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import SlurmCluster, slurm_cluster, why_not


@pytest.fixture(scope="session")
def missing() -> str:
    """Return what is missing for a Slurm cluster on this machine; empty if it can run."""
    return why_not()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, missing: str) -> Iterator[SlurmCluster]:
    if missing:
        pytest.skip(missing)
    with slurm_cluster(tmp_path_factory.mktemp("lab") / "slurm") as cluster:
        yield cluster


@pytest.fixture
def own_slurm(tmp_path_factory: pytest.TempPathFactory, missing: str) -> Iterator[SlurmCluster]:
    """Yield a cluster that no other test uses."""
    if missing:
        pytest.skip(missing)
    with slurm_cluster(tmp_path_factory.mktemp("lab") / "slurm") as cluster:
        yield cluster
