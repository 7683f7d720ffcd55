"""One command over one SSH channel: started, fed, and heard to its end, no wait without a deadline."""

import logging
import select
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import paramiko

from backend.cluster.node import Result

_log = logging.getLogger(__name__)

CHUNK = 1 << 16


def run_command(
    channel: paramiko.Channel, argv: Sequence[str], stdin: bytes, timeout_s: float, deadline: float
) -> Result:
    """How it ended. Raises TimeoutError, and what paramiko raises when the connection is lost."""
    with closed_after(channel, timeout_s):
        channel.exec_command(command_line(argv, timeout_s))
    _send(channel, stdin, timeout_s)
    return _collect(channel, deadline)


def command_line(argv: Sequence[str], timeout_s: float) -> str:
    """What the node's shell is given: the one place where a command becomes text."""
    # Ours is the deadline that counts; the remote one ends what we cannot wait for any longer.
    return shlex.join(["timeout", "-k", "5", f"{timeout_s + 2:.0f}", *argv])


@contextmanager
def closed_after(channel: paramiko.Channel, timeout_s: float) -> Iterator[None]:
    """Ends the waits of paramiko that have no deadline, as a TimeoutError."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        channel.close()

    timer = threading.Timer(timeout_s, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (EOFError, OSError, paramiko.SSHException) as error:
        if expired.is_set():
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()


def _send(channel: paramiko.Channel, stdin: bytes, timeout_s: float) -> None:
    channel.settimeout(timeout_s)
    try:
        channel.sendall(stdin)
        channel.shutdown_write()
    except TimeoutError:
        raise
    except OSError:
        # The command ended without reading all of it; its exit status tells more.
        _log.debug("a command left %d bytes of its input unread", len(stdin))


def _collect(channel: paramiko.Channel, deadline: float) -> Result:
    """Both streams to their ends, then the exit status: asking first would hang behind a full window."""
    out, err = bytearray(), bytearray()
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        if channel.recv_ready():
            out += channel.recv(CHUNK)
        elif channel.recv_stderr_ready():
            err += channel.recv_stderr(CHUNK)
        elif channel.closed or (channel.eof_received and channel.exit_status_ready()):
            break
        elif time.monotonic() > deadline:
            raise TimeoutError
        elif channel.eof_received:
            # The pipe tells of data, and at the end of the streams for ever; the exit status comes behind it.
            channel.status_event.wait(min(0.5, max(0.0, deadline - time.monotonic())))
        else:
            poll.poll(500)
    # paramiko gives a lost connection the same exit status as a signal; only the server says that a stream ended.
    if not channel.eof_received:
        raise EOFError("the connection ended before the command")
    return Result(code=channel.recv_exit_status(), out=out.decode(errors="replace"), err=err.decode(errors="replace"))
