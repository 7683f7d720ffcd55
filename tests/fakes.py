"""A node without a machine: files in memory and prepared answers. It passes the same contract tests as a real node."""

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.cluster.node import OUTPUT_BYTES, ByteStream, NodeError, Result

Reply = Result | NodeError | Mapping[str, Any] | Callable[[Sequence[str], bytes], Result]
"""A mapping answers as our own node programs do: one line `TOKEN{json}` with the token of the request."""


class FakeNode:
    """A node in memory that keeps the contract of `Node`. A command without a prepared answer fails the test."""

    def __init__(self, name: str = "10.0.0.1") -> None:
        self.name = name
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = {"/", "/tmp"}
        self.special = {"/dev/zero"}
        """Existing paths that are no regular files: devices, pipes."""
        self.ran: list[tuple[str, ...]] = []
        self.broken: NodeError | None = None
        """If it is set, every call fails with it, as after a lost connection."""
        self._replies: list[tuple[tuple[str, ...], Reply]] = []

    def on(self, *words: str, reply: Reply) -> "FakeNode":
        """Prepare the answer to commands that contain `words` in this order. The newest rule that matches wins."""
        self._replies.insert(0, (words, reply))
        return self

    def run(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", max_bytes: int = OUTPUT_BYTES
    ) -> Result:
        self._work()
        self.ran.append(tuple(argv))
        for words, reply in self._replies:
            if _contains(argv, words):
                result = _answer(reply, argv, stdin)
                if max(len(result.out.encode(errors="replace")), len(result.err.encode(errors="replace"))) > max_bytes:
                    raise NodeError("too_much_output", self.name, command=argv[0], limit=max_bytes)
                return result
        raise AssertionError(f"{self.name} has no answer for {list(argv)}")

    def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        self._work()
        if path in self.folders or path in self.special:
            raise NodeError("not_a_file", self.name, path=path)
        if path not in self.files:
            raise NodeError("missing_file", self.name, path=path)
        return self.files[path][offset : offset + limit]

    def write(self, path: str, data: bytes) -> None:
        self._work()
        if posixpath.dirname(path) not in self.folders:
            raise NodeError("missing_file", self.name, path=path)
        self.files[path] = data

    def fill_folder(self, path: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        for name in ("", *folders):
            self.make_folder(posixpath.join(path, name).rstrip("/"))
        for name, data in files.items():
            self.write(posixpath.join(path, name), data)

    def make_folder(self, path: str) -> None:
        self._work()
        while path not in self.folders:
            self.folders.add(path)
            path = posixpath.dirname(path)

    def exists(self, path: str) -> bool:
        self._work()
        return path in self.files or path in self.folders or path in self.special

    def dial(self, port: int, *, timeout_s: float) -> ByteStream:
        self._work()
        raise NodeError("dial_refused", self.name, port=port, detail="nothing listens")

    def close(self) -> None:
        pass

    def _work(self) -> None:
        if self.broken:
            raise self.broken


def _contains(argv: Sequence[str], words: Sequence[str]) -> bool:
    remaining = iter(argv)
    return all(word in remaining for word in words)


def _answer(reply: Reply, argv: Sequence[str], stdin: bytes) -> Result:
    if isinstance(reply, NodeError):
        raise reply
    if isinstance(reply, Result):
        return reply
    if isinstance(reply, Mapping):
        token = argv[list(argv).index("--token") + 1]
        return Result(code=0, out=f"{token}{json.dumps(reply)}\n", err="")
    return reply(argv, stdin)
