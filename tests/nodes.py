"""Real SSH nodes for a test module or session: started once, skipped with the reason where there is no sshd."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend.cluster.demo import DemoCluster, DemoError

NODE_PYTHON = Path(__file__).parents[1] / ".venv-node" / "bin" / "python"
"""Has torch and the real LLaMA-Factory."""


@contextmanager
def ssh_nodes(folder: Path, nodes: int) -> Iterator[DemoCluster]:
    """A running DemoCluster in `folder`; at the end it must stop without leaving a process."""
    demo = DemoCluster(folder, nodes=nodes)
    try:
        demo.start()
    except DemoError as error:
        pytest.skip(str(error))
    yield demo
    assert demo.stop() == []
