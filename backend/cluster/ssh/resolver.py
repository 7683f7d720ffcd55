"""Look-ups in the name service within a deadline. getaddrinfo itself has none."""

import queue
import socket
from typing import Any

from backend.cluster.deadlines import Deadline
from backend.cluster.threads import start_thread

Addresses = list[tuple[Any, ...]]
"""Result of socket.getaddrinfo."""


def look_up(name: str, port: int | None, deadline: Deadline, kind: socket.SocketKind = socket.SOCK_STREAM) -> Addresses:
    """Return the addresses of `name`. Raises socket.gaierror, also where no answer comes within the deadline.

    The thread of a late look-up ends by itself.
    """
    answers: queue.SimpleQueue[Addresses | OSError] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            answers.put(socket.getaddrinfo(name, port, type=kind))
        except OSError as error:
            answers.put(error)
        except UnicodeError as error:  # not a valid host name
            answers.put(socket.gaierror(str(error)))

    left_s = deadline.left_s()
    start_thread(resolve, f"look up {name}")
    try:
        answer = answers.get(timeout=left_s)
    except queue.Empty:
        # The name service failed, not the node. A TimeoutError would mean that the node does not answer.
        detail = f"no answer to the look-up of {name} within {deadline.timeout_s:g} s"
        raise socket.gaierror(socket.EAI_AGAIN, detail) from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def resolves(name: str, deadline: Deadline) -> bool:
    """Return whether the name service knows `name`. Raises socket.gaierror if it does not answer in time."""
    try:
        look_up(name, None, deadline)
    except socket.gaierror:
        if deadline.is_past:
            raise
        return False
    return True
