"""Real SSH nodes for a test module or session, and the environment of a node. Without one, tests are skipped."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.demo.local_nodes import DemoError, LocalNodes, _process_tree
from backend.node.supervisor.processes import Process, read_process, send_signal
from tools.programs import NODE_ENVIRONMENT

_MISSING = "" if (NODE_ENVIRONMENT / ".ready").exists() else "no .venv-node: run `make environments`"
needs_node_environment = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)


def skip_without_node_environment() -> None:
    """Skip the test in a fixture, where marks have no effect."""
    if _MISSING:
        pytest.skip(_MISSING)


@contextmanager
def ssh_nodes(folder: Path, nodes: int) -> Iterator[LocalNodes]:
    """Yield a running LocalNodes in `folder`. At the end it must stop and leave no process."""
    demo = LocalNodes(folder, nodes=nodes)
    try:
        demo.start()
    except DemoError as error:
        pytest.skip(str(error))
    yield demo
    assert demo.stop() == []


def signal_sessions(cluster: LocalNodes, rank: int, number: int, *, with_listener: bool = False) -> list[Process]:
    """Send a signal to every process of a node's SSH sessions, and return them."""
    listener = read_process(json.loads((cluster.folder / "nodes.json").read_text())[str(rank)]["pid"])
    assert listener
    processes = [process for process in _process_tree(listener) if with_listener or process.pid != listener.pid]
    assert processes
    for process in processes:
        send_signal(process, number)
    return processes
