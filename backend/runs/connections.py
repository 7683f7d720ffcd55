"""One connection a node, shared by preflight, launch, collectors and stop, whichever run they work for."""

import threading
from collections.abc import Callable

from backend.cluster.node import Node
from backend.job.cluster import Host

Connect = Callable[[Host], Node]
"""Opens a connection to a host or raises NodeError."""
Key = tuple[object, ...]


class Connections:
    """Nodes by how they are reached, connected when first asked for; a node renews a lost link by itself."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._nodes: dict[Key, Node] = {}
        self._locks: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, host: Host) -> Node:
        """The host's node. Raises NodeError, and tries again when next asked."""
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
