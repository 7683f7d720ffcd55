"""What Megaboard asks of a node, whatever carries it: run a command, read and write files.

`Node` is the whole contract; SshNode (ssh.py) and the tests' FakeNode keep it and pass the same cases.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from backend.job.problems import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a command on a node ended."""

    code: int
    """Exit status; -1 when a signal ended it."""
    out: str
    err: str


class NodeError(Exception):
    """A node could not be reached or did not do what it was asked; `problem` says it to the user.

    Codes of this layer: unreachable, address_unknown, host_key_unknown, host_key_changed, authentication,
    passphrase_needed, passphrase_wrong, bad_identity_file, bad_proxy_jump, proxy_command_refused, match_exec_refused,
    bad_ssh_config, old_ssh, timeout, lost, refused, missing_file, node_io, bad_answer, shell_leaves, shell_prints,
    no_environment, no_python, bad_python, no_free_port, and what data_size.py says of data sets.
    """

    def __init__(
        self, code: str, node: str, *, key: str = "address", field: str | None = None, **values: object
    ) -> None:
        self.code = code
        self.node = node
        self.key = key
        """Key of the host in the job file that has to do with it."""
        self.field = field
        """Path in the job file, where it is none of the host's keys."""
        self.rank: int | None = None
        """Node rank; known to those who talk to a whole gang (group.py)."""
        self.values = values
        super().__init__(f"{node}: {code} {values or ''}".rstrip())

    @property
    def problem(self) -> Problem:
        """The same for the user."""
        host = "cluster.hosts" if self.rank is None else f"cluster.hosts[{self.rank}].{self.key}"
        return Problem(
            code=self.code, field=self.field or host, node=self.node, values={"node": self.node, **self.values}
        )


class Node(Protocol):
    """One machine of the gang. Every method raises NodeError, and none waits for ever. Safe from several threads."""

    @property
    def name(self) -> str:
        """What users know it by: its address, with the port where that is not 22."""

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Result:
        """Run a command without a terminal and wait; NodeError(timeout) after `timeout_s`, which also ends it."""

    def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """At most `limit` bytes from `offset`; b"" at or behind the end. NodeError(missing_file) without a file."""

    def write(self, path: str, data: bytes) -> None:
        """Put a whole file, of this user's alone, in place at once; a reader sees the old one or the new one.

        Its folder must exist.
        """

    def fill_folder(self, path: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        """Make a folder of this user's alone, its missing parents and `folders` in it, and put files into it.

        By names without a slash; a reader may see half a file. For a folder that nobody reads yet: far cheaper than
        file by file. NodeError(node_io) when the disk refuses.
        """

    def make_folder(self, path: str) -> None:
        """Make a folder of this user's alone and its missing parents; one that exists stays as it is."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""

    def close(self) -> None:
        """Let go of the connection. A later call connects again."""


def ask(node: Node, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Mapping[str, Any]:
    """Run a program of ours, which prints its answer as one line `TOKEN{json}`, and return the answer.

    The token is random and appended as `--token T`: what shell start-up files print around it does no harm.
    Raises NodeError(bad_answer) with the end of stderr when there is no such line, or it was cut.
    """
    token = secrets.token_hex(8)
    result = node.run([*argv, "--token", token], timeout_s=timeout_s, stdin=stdin)
    for line in result.out.splitlines():
        _, is_there, text = line.partition(token + "{")  # behind what does not end its line
        if not is_there:
            continue
        with suppress(json.JSONDecodeError):
            text = json.dumps(json.loads("{" + text), ensure_ascii=False)
            # A name of a file that is no Unicode arrives as lone surrogates, which nothing here could write or send.
            answer: Mapping[str, Any] = json.loads(text.encode(errors="replace"))
            return answer
    raise NodeError("bad_answer", node.name, command=argv[0], exit=result.code, detail=tail(result.err or result.out))


def sftp_path(path: str) -> str:
    """A path of a node as Node.read and Node.write take it: they start in the home folder of the user who logs in."""
    return path.removeprefix("~/")


def tail(text: str) -> str:
    """The last non-empty lines of a program's output, short enough for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-5:])[-400:]
