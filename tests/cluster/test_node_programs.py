"""The programs that are sent to the nodes."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from backend.cluster import node_programs


def test_nodes_that_are_asked_at_once_get_the_same_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 must not switch to another thread's ast.parse within one, as it does when garbage is collected."""
    monkeypatch.setattr(node_programs, "_join", node_programs._join.__wrapped__)
    switch, threshold = (lambda phase, info: time.sleep(0)), gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(100)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(lambda _: node_programs.node_program(node_programs.SUPERVISOR), range(4)))) == 1
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(switch)
