"""Runs one command over one SSH channel, within a deadline and a limit of bytes."""

import logging
import select
import shlex
from collections.abc import Sequence

import paramiko

from backend.cluster.deadlines import Deadline, ended_at
from backend.cluster.node import Result

_log = logging.getLogger(__name__)

CHUNK = 1 << 16


class TooMuchOutput(Exception):
    """A command printed more than its caller accepts."""


def run_command(
    channel: paramiko.Channel, argv: Sequence[str], stdin: bytes, deadline: Deadline, max_bytes: int
) -> Result:
    """Run a command and return its result.

    Raises TimeoutError, TooMuchOutput, and what paramiko raises when the connection is lost.
    """
    with ended_at(deadline, channel.close):
        channel.exec_command(command_line(argv, deadline.timeout_s))
        _send(channel, stdin)
        return _collect(channel, deadline, max_bytes)


def command_line(argv: Sequence[str], timeout_s: float) -> str:
    """Return the command line for the node's shell. Commands become text only here."""
    # Our deadline is the earlier one. The node's deadline ends commands that nobody waits for any longer.
    return shlex.join(["timeout", "-k", "5", f"{timeout_s + 2:.0f}", *argv])


def _send(channel: paramiko.Channel, stdin: bytes) -> None:
    try:
        for start in range(0, len(stdin), CHUNK):  # paramiko copies the rest for every packet
            channel.sendall(stdin[start : start + CHUNK])
        channel.shutdown_write()
    except TimeoutError:
        raise
    except OSError:
        # The command ended before it read all of its input. Its exit status has the reason.
        _log.debug("a command left %d bytes of its input unread", len(stdin))


def _collect(channel: paramiko.Channel, deadline: Deadline, max_bytes: int) -> Result:
    """Read both streams to their ends, then the exit status. The exit status first would hang behind a full window."""
    out, err = bytearray(), bytearray()
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        left_s = deadline.left_s()
        if channel.recv_ready():
            out += channel.recv(CHUNK)
        elif channel.recv_stderr_ready():
            err += channel.recv_stderr(CHUNK)
        elif channel.closed or (channel.eof_received and channel.exit_status_ready()):
            break
        elif channel.eof_received:
            # At the end of the streams the pipe is always readable. The exit status may come later.
            channel.status_event.wait(min(0.5, left_s))
        else:
            poll.poll(1000 * min(0.5, left_s))
        if max(len(out), len(err)) > max_bytes:
            raise TooMuchOutput
    # paramiko gives a lost connection the same exit status as a signal. Only the server ends a stream.
    if not channel.eof_received:
        raise EOFError("the connection ended before the command")
    return Result(code=channel.recv_exit_status(), out=out.decode(errors="replace"), err=err.decode(errors="replace"))
