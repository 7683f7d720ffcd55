"""The output of a command over SSH, and its exit status."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from backend.cluster.deadlines import Deadline
from backend.cluster.node import Result
from backend.cluster.ssh.channel import _collect


class EndedStreams:
    """A paramiko channel whose streams have ended: its pipe is always readable, and the exit status comes later."""

    closed = False
    eof_received = True

    def __init__(self) -> None:
        self._pipe = os.pipe()
        os.write(self._pipe[1], b"x")
        self.status_event = threading.Event()
        self.looks = 0

    def fileno(self) -> int:
        return self._pipe[0]

    def recv_ready(self) -> bool:
        return False

    def recv_stderr_ready(self) -> bool:
        return False

    def exit_status_ready(self) -> bool:
        self.looks += 1
        return self.status_event.is_set()

    def recv_exit_status(self) -> int:
        return 3

    def close(self) -> None:
        for end in self._pipe:
            os.close(end)


class ToldToWhoWaits(threading.Event):
    """A channel whose exit status comes only while a thread waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


@pytest.fixture
def channel() -> Iterator[Any]:
    ended_streams = EndedStreams()
    yield ended_streams
    ended_streams.close()


def test_waiting_for_an_exit_status_does_not_spin(channel: Any) -> None:
    channel.status_event = ToldToWhoWaits()
    assert _collect(channel, Deadline(20), 1 << 20) == Result(code=3, out="", err="")
    assert channel.looks == 2


def test_an_exit_status_that_never_comes_is_a_timeout(channel: Any) -> None:
    with pytest.raises(TimeoutError):
        _collect(channel, Deadline(0.05), 1 << 20)
