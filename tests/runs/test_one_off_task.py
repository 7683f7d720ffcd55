"""The last output of a task's program is safe to show on the page and on a terminal."""

import pytest

from backend.cluster.node import NodeError
from backend.cluster.program_answers.hardware import Measured
from backend.runs import redact
from backend.runs.tasks.one_off_task import log_excerpt, read_answer
from tests.fakes import FakeNode


def test_a_secret_that_a_program_said_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_known_secrets", redact._KnownSecrets())
    redact.hide("a-secret-of-the-ranks")
    node = FakeNode()
    node.files["/out.log"] = b"loading\nOSError: 401 for a-secret-of-the-ranks\n"
    said = log_excerpt(node, "/out.log")
    assert "OSError: 401" in said
    assert "a-secret" not in said


class Counting(FakeNode):
    """Counts the bytes that were read of it."""

    bytes_read = 0

    def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        data = super().read(path, offset, limit)
        self.bytes_read += len(data)
        return data


def test_of_a_long_log_only_the_end_is_read() -> None:
    node = Counting()
    node.files["/out.log"] = b"line\n" * (4 << 20) + b"OSError: the end\n"
    assert log_excerpt(node, "/out.log").endswith("line\nOSError: the end")
    assert node.bytes_read < 256 << 10


def test_of_a_log_that_never_ends_only_so_much_is_asked() -> None:
    class Endless(Counting):
        def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
            self.bytes_read += limit
            return b"x" * limit

    node = Endless()
    assert log_excerpt(node, "/out.log").endswith("x")
    assert node.bytes_read < 256 << 10


def test_a_log_that_is_a_device_has_no_excerpt() -> None:
    assert log_excerpt(FakeNode(), "/dev/zero") == ""


@pytest.mark.parametrize("text", [b"", b"[", b"[1]", b"{" * 10_000, b'{"time": NaN}', b'{"a": ' + b"1" * 5000, b"\xff"])
def test_a_record_that_is_none_is_a_fault_of_the_node(text: bytes) -> None:
    node = FakeNode("10.0.0.7")
    node.files["/exit"] = text
    with pytest.raises(NodeError) as caught:
        read_answer(node, "/exit", Measured)
    assert (caught.value.code, caught.value.node, caught.value.values["command"]) == ("bad_answer", "10.0.0.7", "/exit")
    assert read_answer(node, "/none", Measured) is None
