"""One connection a node, shared by preflight, launch, collectors and stop, whichever run they work for."""

import threading
from collections.abc import Callable

from backend.cluster.node import Node
from backend.job.job import Host

Connect = Callable[[Host], Node]
"""Opens a connection to a host or raises NodeError."""


class Connections:
    """Nodes by host, each connected when first asked for. A node reconnects by itself when its link was lost."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._nodes: dict[Host, Node] = {}
        self._locks: dict[Host, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, host: Host) -> Node:
        """The host's node. Raises NodeError, and tries again when next asked."""
        with self._lock:
            lock = self._locks.setdefault(host, threading.Lock())
        with lock:
            node = self._nodes.get(host)
            if node is None:
                node = self._nodes[host] = self._connect(host)
            return node

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            nodes = list(self._nodes.values())
            self._nodes.clear()
        for node in nodes:
            node.close()
