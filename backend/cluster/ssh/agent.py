"""Client of this machine's SSH agent. Every request has a deadline, and every error names the agent.

paramiko's own client waits forever for an agent that hangs, and so does a log-in that needs its signature.
"""

import logging
import os
import socket
import struct

from paramiko import SSHException
from paramiko.agent import (
    SSH2_AGENT_IDENTITIES_ANSWER,
    SSH2_AGENT_SIGN_RESPONSE,
    AgentKey,
    AgentSSH,
    cSSH2_AGENTC_REQUEST_IDENTITIES,
    cSSH2_AGENTC_SIGN_REQUEST,
)
from paramiko.message import Message

from backend.cluster.deadlines import Deadline
from backend.cluster.node import NodeError
from backend.cluster.ssh.connect_errors import is_local_resource

_log = logging.getLogger(__name__)

LONGEST_ANSWER = 256 * 1024
MOST_KEYS = 2048
"""OpenSSH's own limits."""
CHUNK = 1 << 16
ANSWER_SHARE = 0.8
"""Part of the remaining time for one answer of the agent. So a hanging agent is not taken for a hanging node."""


class Agent(AgentSSH):
    """The agent that SSH_AUTH_SOCK names, for one log-in. The first request for keys connects to it.

    Raises NodeError for `node` before `deadline`, the end of the log-in: agent_hangs, agent_failed, local_resources. A
    request after the deadline is a TimeoutError. paramiko requests a signature in its own thread, which passes the
    NodeError on.
    """

    def __init__(self, node: str, deadline: Deadline) -> None:
        super().__init__()
        self._node = node
        self._deadline = deadline
        self._path = os.environ.get("SSH_AUTH_SOCK", "")
        self._socket: socket.socket | None = None

    def listed(self) -> tuple[AgentKey, ...]:
        """Return the agent's keys. The tuple is empty if no agent is named or none listens."""
        if not self._path or not self._open_socket():
            return ()
        _, answer = self._send_message(cSSH2_AGENTC_REQUEST_IDENTITIES)
        try:
            count = answer.get_int()
            if count > MOST_KEYS:
                raise ValueError(f"{count} keys")
            keys = [(answer.get_binary(), answer.get_binary()) for _ in range(count)]
        except (ValueError, struct.error) as error:
            raise self._failed(f"no list of keys: {error}") from error
        return tuple(key for blob, comment in keys if (key := self._key(blob, comment)) is not None)

    def close(self) -> None:
        """Close the connection to the agent. Its keys can no longer sign."""
        if self._socket is not None:
            self._socket.close()

    def _key(self, blob: bytes, comment: bytes) -> AgentKey | None:
        try:
            return AgentKey(agent=self, blob=blob, comment=comment.decode(errors="replace"))
        except (ValueError, SSHException) as error:
            _log.info("%s: a key of the agent cannot be used: %s", self._node, error)
            return None

    def _open_socket(self) -> bool:
        """Connect to the agent and return whether one listens. An agent that has ended does not count as an error."""
        deadline = self._answer_deadline()
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(deadline.left_s())
            self._socket.connect(self._path)
        except (TimeoutError, BlockingIOError) as error:  # its queue of waiting clients is full
            raise self._hangs(deadline) from error
        except OSError as error:
            if is_local_resource(error):
                raise NodeError("local_resources", self._node, detail=str(error)) from error
            _log.info("no SSH agent listens at %s: %s", self._path, error)
            return False
        return True

    def _send_message(self, msg: bytes | Message) -> tuple[int, Message]:
        """Send a request and return its answer. AgentKey calls this method to sign."""
        request = msg if isinstance(msg, bytes) else msg.asbytes()
        if self._socket is None:
            raise self._failed("not connected")
        deadline = self._answer_deadline()
        try:
            answer = _exchange(self._socket, request, deadline)
        except TimeoutError as error:
            raise self._hangs(deadline) from error
        except OSError as error:
            raise self._failed(str(error)) from error
        kind = ord(answer.get_byte())
        if request[:1] == cSSH2_AGENTC_SIGN_REQUEST and kind != SSH2_AGENT_SIGN_RESPONSE:
            raise self._failed("it did not sign")
        if request[:1] == cSSH2_AGENTC_REQUEST_IDENTITIES and kind != SSH2_AGENT_IDENTITIES_ANSWER:
            raise self._failed("it did not list its keys")
        return kind, answer

    def _answer_deadline(self) -> Deadline:
        return Deadline(self._deadline.left_s() * ANSWER_SHARE)

    def _hangs(self, deadline: Deadline) -> NodeError:
        seconds = f"{deadline.timeout_s:.1f}"
        return NodeError("agent_hangs", self._node, key="identity_file", agent=self._path, seconds=seconds)

    def _failed(self, detail: str) -> NodeError:
        return NodeError("agent_failed", self._node, key="identity_file", agent=self._path, detail=detail)


def _exchange(agent: socket.socket, request: bytes, deadline: Deadline) -> Message:
    agent.settimeout(deadline.left_s())
    agent.sendall(struct.pack(">I", len(request)) + request)
    (length,) = struct.unpack(">I", _receive(agent, 4, deadline))
    if not 0 < length <= LONGEST_ANSWER:
        raise OSError(f"an answer of {length} bytes")
    return Message(_receive(agent, length, deadline))


def _receive(agent: socket.socket, count: int, deadline: Deadline) -> bytes:
    """Read exactly this many bytes, in one part or several."""
    data = b""
    while len(data) < count:
        agent.settimeout(deadline.left_s())
        more = agent.recv(min(CHUNK, count - len(data)))
        if not more:
            raise OSError("it closed the connection")
        data += more
    return data
