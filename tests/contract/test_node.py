"""The contract of every node: the same cases with the fake node and over a real sshd."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.node import OUTPUT_BYTES, Node, NodeError, Result, ask
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.node import connect
from tests.fakes import FakeNode

pytestmark = pytest.mark.contract


@pytest.fixture(params=["fake", "sshd"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    if request.param == "fake":
        yield _fake()
        return
    cluster: LocalNodes = request.getfixturevalue("cluster")
    known_hosts: KnownHosts = request.getfixturevalue("known_hosts")
    real = connect(cluster.hosts()[0], known_hosts)
    yield real
    real.close()


@pytest.fixture
def folder(node: Node, free_folder: str) -> str:
    if isinstance(node, FakeNode):
        node.make_folder(free_folder)
    return free_folder


def _fake() -> FakeNode:
    node = FakeNode("127.0.0.1:2222")
    node.on("cat", reply=lambda argv, stdin: Result(code=0, out=stdin.decode(), err=""))
    node.on("sh", "echo out; echo err >&2; exit 3", reply=Result(code=3, out="out\n", err="err\n"))
    node.on("printf", "%s", reply=lambda argv, stdin: Result(code=0, out=argv[-1], err=""))
    node.on("yes", reply=lambda argv, stdin: Result(code=0, out="", err="y\n" * (4 << 20)))
    node.on("head", reply=lambda argv, stdin: Result(code=0, out="\0" * int(argv[2]), err=""))
    node.on("sleep", reply=NodeError("timeout", node.name, seconds=1))
    node.on("python3", reply={"answer": 42})
    return node


def test_a_command_answers_its_exit_status_and_both_streams(node: Node) -> None:
    result = node.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=60)
    assert result == Result(code=3, out="out\n", err="err\n")


def test_a_command_reads_its_input_to_the_end(node: Node) -> None:
    text = "line\n" * 50_000
    assert node.run(["cat"], timeout_s=60, stdin=text.encode()).out == text


@pytest.mark.parametrize("word", ["a b", "; rm -rf x", "$(id)", "`id`", "'", '"', "*", "--", "行\n", "a\\b"])
def test_no_word_is_read_as_shell_syntax(node: Node, word: str) -> None:
    assert node.run(["printf", "%s", word], timeout_s=60).out == word


def test_a_command_that_does_not_end_is_a_timeout(node: Node) -> None:
    with pytest.raises(NodeError) as caught:
        node.run(["sleep", "60"], timeout_s=0.2)
    assert caught.value.code == "timeout"
    assert caught.value.node == node.name


@pytest.mark.parametrize("script", ["exec yes", "exec yes >&2", "exec yes 2>&1 >&2", "cat /dev/zero"])
def test_a_command_that_prints_without_end_is_ended_and_named(node: Node, script: str) -> None:
    if isinstance(node, FakeNode):
        script = "yes"
    with pytest.raises(NodeError) as caught:
        node.run(["sh", "-c", script] if script != "yes" else ["yes"], timeout_s=60)
    problem = caught.value.problem
    assert (problem.code, problem.node, problem.values["limit"]) == ("too_much_output", node.name, OUTPUT_BYTES)
    assert problem.values["command"] in ("sh", "yes")
    assert node.run(["printf", "%s", "again"], timeout_s=60).out == "again"


def test_a_caller_that_needs_more_output_says_so(node: Node) -> None:
    command = ["head", "-c", str(2 * OUTPUT_BYTES), "/dev/zero"]
    assert len(node.run(command, timeout_s=60, max_bytes=2 * OUTPUT_BYTES).out) == 2 * OUTPUT_BYTES
    with pytest.raises(NodeError, match="too_much_output"):
        node.run(command, timeout_s=60, max_bytes=2 * OUTPUT_BYTES - 1)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(node: Node, folder: str) -> None:
    pipe = f"{folder}/pipe"
    if isinstance(node, FakeNode):
        node.special.add(pipe)
    else:
        os.mkfifo(pipe)
    for path in (pipe, folder, "/dev/zero"):
        with pytest.raises(NodeError) as caught:
            node.read(path)
        assert (caught.value.code, caught.value.values["path"]) == ("not_a_file", path)
    node.write(f"{folder}/file", b"still served")
    assert node.read(f"{folder}/file") == b"still served"


def test_an_answer_is_found_among_what_the_shell_prints(node: Node) -> None:
    script = b"import sys; print('welcome'); print(sys.argv[-1] + '{\"answer\": 42}')"
    assert ask(node, ["python3", "-"], timeout_s=60, stdin=script) == {"answer": 42}


def test_a_written_file_is_read_by_offset(node: Node, folder: str) -> None:
    node.write(f"{folder}/file", b"0123456789")
    assert node.read(f"{folder}/file") == b"0123456789"
    assert node.read(f"{folder}/file", 4) == b"456789"
    assert node.read(f"{folder}/file", 4, 2) == b"45"
    assert node.read(f"{folder}/file", 10) == b""
    assert node.read(f"{folder}/file", 99) == b""


def test_writing_again_replaces_the_whole_file(node: Node, folder: str) -> None:
    node.write(f"{folder}/file", b"long " * 20_000)
    node.write(f"{folder}/file", b"short")
    assert node.read(f"{folder}/file") == b"short"


def test_a_missing_file_is_named(node: Node, folder: str) -> None:
    with pytest.raises(NodeError) as caught:
        node.read(f"{folder}/none")
    assert caught.value.code == "missing_file"
    assert caught.value.problem.values["path"] == f"{folder}/none"
    assert caught.value.problem.node == node.name


def test_writing_into_a_missing_folder_fails(node: Node, folder: str) -> None:
    with pytest.raises(NodeError) as caught:
        node.write(f"{folder}/none/file", b"")
    assert caught.value.code == "missing_file"


def test_folders_are_made_with_their_parents_and_may_exist(node: Node, folder: str) -> None:
    node.make_folder(f"{folder}/a/b/c")
    node.make_folder(f"{folder}/a/b/c")
    assert node.exists(f"{folder}/a/b/c")
    assert not node.exists(f"{folder}/a/x")


def test_a_folder_is_filled_at_once(node: Node, folder: str) -> None:
    path = f"{folder}/new folder/it's"
    files = {"empty": b"", "large": bytes(range(256)) * 4000, "with blank": "行\n".encode()}
    node.fill_folder(path, files, ["control"])
    assert {name: node.read(f"{path}/{name}", limit=1 << 21) for name in files} == files
    assert node.exists(f"{path}/control")
    node.fill_folder(path, {"empty": b"no more"})
    assert node.read(f"{path}/empty") == b"no more"
    assert node.read(f"{path}/with blank") == files["with blank"]


def test_what_is_made_is_of_its_user_alone(cluster: LocalNodes, known_hosts: KnownHosts, free_folder: str) -> None:
    real = connect(cluster.hosts()[0], known_hosts)
    real.fill_folder(f"{free_folder}/a/b", {"file": b"x"}, ["inside"])
    real.make_folder(f"{free_folder}/made")
    real.write(f"{free_folder}/made/file", b"x")
    real.close()
    modes = {str(path.relative_to(free_folder)): path.stat().st_mode & 0o777 for path in Path(free_folder).rglob("*")}
    folders, files = ("a", "a/b", "a/b/inside", "made"), ("a/b/file", "made/file")
    assert modes == dict.fromkeys(folders, 0o700) | dict.fromkeys(files, 0o600)


def test_a_folder_that_cannot_be_made_is_named(cluster: LocalNodes, known_hosts: KnownHosts, free_folder: str) -> None:
    Path(free_folder, "file").write_text("in the way")
    real = connect(cluster.hosts()[0], known_hosts)
    with pytest.raises(NodeError, match="node_io") as caught:
        real.fill_folder(f"{free_folder}/file/folder", {"x": b""})
    real.close()
    assert "file" in str(caught.value.values["detail"])


def test_several_threads_may_use_one_node(node: Node, folder: str) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            path, text = f"{folder}/{number}", str(number) * 10_000
            node.write(path, text.encode())
            assert node.read(path) == text.encode()
            assert node.run(["printf", "%s", text], timeout_s=60).out == text
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_port_where_nothing_listens_is_refused(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(NodeError) as refused:
        node.dial(port, timeout_s=30)
    assert refused.value.code == "dial_refused"


def test_a_program_of_the_node_is_reached_at_its_port(cluster: LocalNodes, known_hosts: KnownHosts) -> None:
    node = connect(cluster.hosts()[0], known_hosts)
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = node.dial(server.getsockname()[1], timeout_s=30)
        accepted, _ = server.accept()
        with accepted:
            stream.sendall(b"question")
            assert accepted.recv(100) == b"question"
            accepted.sendall(b"answer")
        assert (stream.recv(100), stream.recv(100)) == (b"answer", b"")
    stream.close()
    node.close()
