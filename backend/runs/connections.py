"""One connection for each node, shared by the preflight, launches, collectors and stops of all runs."""

import threading
from collections.abc import Callable

from backend.cluster.node import Node
from backend.job.cluster import Host

Connect = Callable[[Host], Node]
"""Connects to a host, or raises NodeError."""
Key = tuple[object, ...]


class Connections:
    """Connected nodes by address and credentials. A node connects at its first use and reconnects by itself."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._nodes: dict[Key, Node] = {}
        self._locks: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, host: Host) -> Node:
        """Return the node of a host. Raises NodeError; the next call tries again."""
        key = (host.address, host.user, host.port, host.identity_file, host.proxy_jump)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = self._connect(host)
            return node

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            nodes = list(self._nodes.values())
            self._nodes.clear()
        for node in nodes:
            node.close()
