"""Interface of a node: run a command, read and write files.

SshNode (ssh/node.py) and the tests' FakeNode implement `Node` and pass the same tests.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backend.cluster.node_json import BadJson, parse_node_json
from backend.job.problems import Problem

OUTPUT_BYTES = 1 << 20
"""Limit of each stream of a command, unless its caller needs more."""
ANSWER_BYTES = 4 << 20
"""Limit of each stream of our programs: 100 times the largest answer of a node with 8 GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Result of a command on a node."""

    code: int
    """Exit status. -1: a signal ended it."""
    out: str
    err: str


LOCAL_CODES = frozenset(
    {
        "local_resources",  # no file descriptor, memory or thread left in this process
        "local_network",  # no route, no free port, or a firewall on this machine
        "address_unknown",  # the resolver did not answer or does not know the name; no connection was tried
        "bad_ssh_config",
        "bad_known_hosts",
        "match_exec_refused",
        "match_undecided",
        "proxy_command_refused",
        "bad_proxy_jump",
        "too_many_jumps",
        "bad_identity_file",
        "passphrase_needed",
        "passphrase_wrong",
        "agent_hangs",
        "agent_failed",
        # The machine answers and proves its host key. A refused log-in is no sign of a lost node.
        "authentication",
        "old_ssh",
        "host_key_unknown",  # the run was launched with a known key: the file that held it has changed
    }
)
"""Codes of failures on the server's side. They say nothing about the node.

All other codes are about the network or the node. host_key_changed is one of them: nobody knows who answers there.
"""


class NodeError(Exception):
    """A node could not be reached, or a request to it failed. `problem` describes the failure for the user.

    Codes of this layer: LOCAL_CODES and unreachable, host_key_changed, timeout, lost, refused, missing_file,
    not_a_file, node_io, bad_answer, too_much_output, shell_leaves, shell_prints, no_environment, no_python, bad_python,
    no_free_port, dial_refused, and the codes of data sets (dataset_size.py).
    """

    def __init__(
        self, code: str, node: str, *, key: str = "address", field: str | None = None, **values: object
    ) -> None:
        self.code = code
        self.node = node
        self.key = key
        """Key of the host in the job file that the error is about."""
        self.field = field
        """Path in the job file, where the error is about none of the host's keys."""
        self.rank: int | None = None
        """Node rank. node_group.py sets it."""
        self.values = values
        super().__init__(f"{node}: {code} {values or ''}".rstrip())

    @property
    def is_local(self) -> bool:
        """Return whether the failure is on the server's side. Such a failure never counts towards a lost node."""
        return self.code in LOCAL_CODES

    @property
    def problem(self) -> Problem:
        """Return the error as a problem of the job file."""
        host = "cluster.hosts" if self.rank is None else f"cluster.hosts[{self.rank}].{self.key}"
        return Problem(
            code=self.code, field=self.field or host, node=self.node, values={"node": self.node, **self.values}
        )


class Node(Protocol):
    """One machine of the gang. Every method raises NodeError, and none waits forever. Several threads may use it."""

    @property
    def name(self) -> str:
        """Return the node's name for users: its address, with the port where that is not 22."""

    def run(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", max_bytes: int = OUTPUT_BYTES
    ) -> Result:
        """Run a command without a terminal and wait for its end.

        Raises NodeError(timeout) after `timeout_s`, and NodeError(too_much_output) if stdout or stderr is longer than
        `max_bytes`. Both end the command.
        """

    def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Return at most `limit` bytes of a file from `offset`, and b"" at or behind the end.

        Raises NodeError(missing_file) without a file, and NodeError(not_a_file) for a folder, a device or a pipe.
        """

    def write(self, path: str, data: bytes) -> None:
        """Replace a whole file at once: a reader sees the old file or the new one. Only this user may read the file.

        Its folder must exist.
        """

    def fill_folder(self, path: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        """Create a folder that only this user may read, its missing parents, and `folders` and `files` in it.

        The names have no slash. A reader may see half a file, so nobody should read the folder yet. One call is much
        faster than one call per file. Raises NodeError(node_io) if the disk refuses.
        """

    def make_folder(self, path: str) -> None:
        """Create a folder that only this user may read, and its missing parents. An existing folder stays as it is."""

    def exists(self, path: str) -> bool:
        """Return whether the file or folder exists."""

    def dial(self, port: int, *, timeout_s: float) -> "ByteStream":
        """Connect to a port that a program of the node listens on, at the node's own 127.0.0.1.

        Nothing else can reach it. Raises NodeError(dial_refused) when nothing listens, or when the SSH server of the
        node forbids forwarding.
        """

    def close(self) -> None:
        """Close the connection. A later call connects again."""


class ByteStream(Protocol):
    """A connection to a program of a node. Another thread may close it, which ends every wait."""

    def sendall(self, data: bytes) -> None:
        """Send all bytes. Raises OSError."""

    def recv(self, size: int) -> bytes:
        """Return at most `size` bytes, and b"" at the end. Raises TimeoutError without bytes for the timeout."""

    def settimeout(self, timeout_s: float | None) -> None:
        """Set the longest wait of `recv` and `sendall`."""

    def close(self) -> None:
        """Close the connection. The program sees its end."""


def ask(
    node: Node, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", max_bytes: int = ANSWER_BYTES
) -> Mapping[str, Any]:
    """Run one of our programs, which prints its answer as one line `TOKEN{json}`, and return the answer.

    The random token is passed as `--token T`. It separates the answer from the output of shell start-up files.
    Raises NodeError(bad_answer) with the end of stderr if there is no such line, if the line is cut, or if
    parse_node_json refuses it.
    """
    token = secrets.token_hex(8)
    result = node.run([*argv, "--token", token], timeout_s=timeout_s, stdin=stdin, max_bytes=max_bytes)
    refusal = ""
    for line in result.out.splitlines():
        _, is_there, text = line.partition(token + "{")  # other output may precede it in the same line
        if not is_there:
            continue
        try:
            answer: Mapping[str, Any] = parse_node_json("{" + text, max_bytes=max_bytes)
            return answer
        except BadJson as error:
            refusal = str(error)
    detail = tail(result.err) or refusal or tail(result.out)
    raise NodeError("bad_answer", node.name, command=argv[0], exit=result.code, detail=detail)


def sftp_path(path: str) -> str:
    """Return a path for Node.read and Node.write, which start in the home folder of the log-in user."""
    return path.removeprefix("~/")


def tail(text: str) -> str:
    """Return the last non-empty lines of a program's output, short enough for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-5:])[-400:]
