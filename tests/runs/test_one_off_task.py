"""The last output of a task's program is safe to show on the page and on a terminal."""

import pytest

from backend.cluster.node import NodeError
from backend.cluster.node_group import GroupError
from backend.cluster.program_answers.hardware import Measured
from backend.runs import redact
from backend.runs.tasks.one_off_task import NodeReader, log_excerpt, read_answer
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


def test_a_node_is_lost_when_it_has_been_silent_for_the_whole_patience() -> None:
    now = [0.0]
    nodes = {0: FakeNode("a"), 1: FakeNode("b")}
    reader = NodeReader(nodes, lambda: now[0])

    def read_at(time: float) -> dict[int, bool | None]:
        now[0] = time
        return reader.read(lambda rank, node: node.exists("/tmp"))

    assert read_at(0) == {0: True, 1: True}
    nodes[1].broken = NodeError("lost", "b", detail="")
    assert read_at(10) == {0: True, 1: None}
    assert read_at(39) == {0: True, 1: None}
    nodes[1].broken = None
    assert read_at(39.5) == {0: True, 1: True}
    nodes[1].broken = NodeError("unreachable", "b", address="b", port=22, detail="")
    assert read_at(50) == {0: True, 1: None}
    with pytest.raises(GroupError) as lost:
        read_at(80)
    (problem,) = lost.value.problems
    assert (problem.code, problem.node, problem.field) == ("unreachable", "b", "cluster.hosts[1].address")


def test_a_node_that_answers_wrongly_fails_at_once() -> None:
    node = FakeNode("b")
    node.broken = NodeError("bad_answer", "b", command="x", exit=0, detail="")
    with pytest.raises(GroupError):
        NodeReader({1: node}, lambda: 0.0).read(lambda rank, node: node.exists("/tmp"))
