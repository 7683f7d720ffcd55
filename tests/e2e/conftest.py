"""Nodes that run the real engine."""

from collections.abc import Iterator

import pytest

from backend.cluster.demo import DemoCluster
from tests.nodes import NODE_PYTHON, ssh_nodes


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoCluster]:
    """As many real SSH nodes as the test module's NODES says."""
    if not (NODE_PYTHON.parents[1] / ".ready").exists():
        pytest.skip("no .venv-node: run `make environments`")
    with ssh_nodes(tmp_path_factory.mktemp("cluster"), nodes=request.module.NODES) as demo:
        yield demo
