"""Four real SSH servers for the whole session. The tests are skipped with a reason if there is no sshd."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.ssh.host_keys import KnownHosts
from tests.nodes import ssh_nodes


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    with ssh_nodes(tmp_path_factory.mktemp("cluster"), nodes=4) as demo:
        yield demo


@pytest.fixture(scope="session")
def known_hosts(cluster: LocalNodes) -> KnownHosts:
    return KnownHosts(cluster.folder / "app_known_hosts", cluster.folder / "known_hosts")


@pytest.fixture
def free_folder(tmp_path: Path) -> str:
    return str(tmp_path)
