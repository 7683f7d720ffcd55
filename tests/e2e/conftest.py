"""Nodes that run the real engine, and a controller that knows their host keys."""

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo import tiny_model
from app.demo.local_nodes import LocalNodes
from backend.cluster.ssh.host_keys import KnownHosts
from backend.runs.controller import Controller
from backend.runs.store.store import Store
from tests.nodes import skip_without_node_environment, ssh_nodes
from tools.browser import Server, served
from tools.programs import NODE_PYTHON


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder with the tiny model and its data, which tests copy. All workers share it: it costs an import of
    transformers."""
    skip_without_node_environment()
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "tiny"
    with folder.with_name("tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([NODE_PYTHON, "-W", "ignore", tiny_model.__file__, folder], check=True)
    return folder


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    """Yield as many real SSH nodes as the test module's NODES says."""
    skip_without_node_environment()
    with ssh_nodes(tmp_path_factory.mktemp("cluster"), nodes=request.module.NODES) as demo:
        yield demo


@pytest.fixture
def home(cluster: LocalNodes, tmp_path: Path) -> Path:
    """Return a home folder in which the nodes' host keys are confirmed."""
    (tmp_path / "known_hosts").write_text((cluster.folder / "known_hosts").read_text())
    return tmp_path


@pytest.fixture
def controller(home: Path) -> Iterator[Controller]:
    store = Store(home / "megaboard.db")
    controller = Controller(home, store, KnownHosts(home / "known_hosts"))
    yield controller
    controller.close()
    store.close()


@pytest.fixture(scope="module")
def server(cluster: LocalNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server of the page in whose home the nodes' host keys are confirmed."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(cluster.folder / "known_hosts", home)
    with served(home) as server:
        yield server
