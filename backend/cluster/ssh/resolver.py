"""The name service, within a deadline: getaddrinfo itself waits as long as it likes."""

import queue
import socket
from typing import Any

from backend.cluster.deadlines import Deadline
from backend.cluster.threads import start_thread

Places = list[tuple[Any, ...]]
"""What socket.getaddrinfo returns."""


def look_up(name: str, port: int | None, deadline: Deadline, kind: socket.SocketKind = socket.SOCK_STREAM) -> Places:
    """The places that `name` stands for. Raises socket.gaierror, also where no answer comes within the deadline.

    The thread of a look-up that does not answer is left to end by itself.
    """
    answers: queue.SimpleQueue[Places | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(name, port, type=kind))
        except OSError as error:
            answers.put(error)
        except UnicodeError as error:  # not a valid host name
            answers.put(socket.gaierror(str(error)))

    left_s = deadline.left_s()
    start_thread(ask, f"look up {name}")
    try:
        answer = answers.get(timeout=left_s)
    except queue.Empty:
        # The name service failed, not the node: a TimeoutError would be taken for a node that does not answer.
        detail = f"no answer to the look-up of {name} within {deadline.timeout_s:g} s"
        raise socket.gaierror(socket.EAI_AGAIN, detail) from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def resolves(name: str, deadline: Deadline) -> bool:
    """Whether the name service knows `name`. Raises socket.gaierror where it does not answer within the deadline."""
    try:
        look_up(name, None, deadline)
    except socket.gaierror:
        if deadline.is_past:
            raise
        return False
    return True
