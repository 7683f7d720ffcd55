"""A TCP proxy that is slow and forwards data in small pieces, like a poor line."""

import random
import socket
import threading
import time


class SlicingProxy:
    """A proxy from `place` to `target` that forwards pieces of 1 to `most` bytes, each `delay_s` late.

    Order and content stay the same. It is a context manager; connections end with it.
    """

    def __init__(
        self, address: tuple[str, int], target: tuple[str, int], *, seed: int, most: int = 700, delay_s: float = 0.02
    ) -> None:
        self._target = target
        self._chance = random.Random(seed)
        self._most = most
        self._delay_s = delay_s
        self._server = socket.create_server(address)
        self._ends: list[socket.socket] = []

    def __enter__(self) -> "SlicingProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in [self._server, *self._ends]:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                time.sleep(self._delay_s)
                while data:
                    size = self._chance.randint(1, self._most)
                    sink.sendall(data[:size])
                    data = data[size:]
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                end.close()
