"""An SSH agent that hangs delays nothing: it is named by a log-in at a real sshd, and its process ends."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.deadlines import Deadline
from backend.cluster.node import NodeError
from backend.cluster.ssh import connection
from backend.cluster.ssh.agent import Agent
from backend.cluster.ssh.connection import Connection, open_connection
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.passphrases import Passphrases
from backend.job.cluster import Host
from tests.contract.test_ssh import make_key
from tests.runs.gangs import stand_in_job
from tests.texts import said

pytestmark = [pytest.mark.contract, pytest.mark.slow]

OPEN_S = 60
LEFT_S = 2.5
"""Time that a log-in has left when it asks the agent, where the agent must be named."""
LIST, SIGN = 11, 13


@contextmanager
def speaking(path: Path, monkeypatch: pytest.MonkeyPatch, talk: Callable[[socket.socket], None]) -> Iterator[None]:
    """Yield the socket of a program in place of an SSH agent that answers as the test says."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen(8)
    taken: list[socket.socket] = []

    def hold(connection: socket.socket) -> None:
        with suppress(OSError):
            talk(connection)

    def serve() -> None:
        with suppress(OSError):
            while True:
                taken.append(server.accept()[0])
                threading.Thread(target=hold, args=(taken[-1],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    try:
        yield
    finally:
        for one in (server, *taken):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def question(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(length, socket.MSG_WAITALL)


def says_nothing(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def drips(connection: socket.socket) -> None:
    """Each byte comes well within any time-out for one read."""
    question(connection)
    connection.sendall(struct.pack(">I", 5000) + b"\x0c")
    for _ in range(5000):
        connection.sendall(b"\0")
        time.sleep(0.05)


def _answer(body: bytes) -> Callable[[socket.socket], None]:
    def talk(connection: socket.socket) -> None:
        question(connection)
        connection.sendall(struct.pack(">I", len(body)) + body)
        says_nothing(connection)

    return talk


@contextmanager
def real_agent(path: Path) -> Iterator[None]:
    if shutil.which("ssh-agent") is None:
        pytest.skip("there is no ssh-agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    while not path.exists():
        assert process.poll() is None
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _open(
    cluster: LocalNodes, ssh_folder: Path, identity_file: str | None = None, timeout_s: float = OPEN_S
) -> Connection:
    host = replace(cluster.hosts()[0], identity_file=identity_file)
    known = KnownHosts(cluster.folder / "known_hosts")
    return open_connection(host, known, timeout_s=timeout_s, ssh_folder=ssh_folder, passphrases=Passphrases())


def negotiate_and_hurry(*args: Any) -> None:
    """Do the real handshake, which may be slow here. Then leave LEFT_S of the log-in's time."""
    deadline = args[-1]
    NEGOTIATE(*args)
    deadline.at = time.monotonic() + LEFT_S


NEGOTIATE = connection._negotiate


def _failure(
    cluster: LocalNodes, ssh_folder: Path, identity_file: str | None = None, timeout_s: float = OPEN_S
) -> NodeError:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_negotiate", negotiate_and_hurry)
        with pytest.raises(NodeError) as caught:
            _open(cluster, ssh_folder, identity_file, timeout_s)
    return caught.value


@pytest.mark.parametrize("talk", [says_nothing, drips])
def test_an_agent_that_does_not_answer_is_named(
    cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, talk: Callable[[socket.socket], None]
) -> None:
    with speaking(tmp_path / "agent", monkeypatch, talk):
        error = _failure(cluster, tmp_path)
    assert (error.code, error.is_local, error.values["agent"]) == ("agent_hangs", True, f"{tmp_path}/agent")


def test_an_agent_that_hangs_is_named_though_most_of_the_time_was_over_before(
    cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens after a slow name service or handshake."""
    with speaking(tmp_path / "agent", monkeypatch, says_nothing):
        error = _failure(cluster, tmp_path, timeout_s=600)
    assert error.code == "agent_hangs"
    assert float(str(error.values["seconds"])) < LEFT_S


def test_an_agent_that_lists_its_keys_and_hangs_at_signing_is_named(
    cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real_agent(tmp_path / "real"):
        environment = {**os.environ, "SSH_AUTH_SOCK": str(tmp_path / "real")}
        subprocess.run(["ssh-add", "-q", cluster.identity_file], env=environment, check=True)

        def lists_only(connection: socket.socket) -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as behind:
                behind.connect(str(tmp_path / "real"))
                while (request := question(connection))[0] == LIST:
                    behind.sendall(struct.pack(">I", len(request)) + request)
                    answer = question(behind)
                    connection.sendall(struct.pack(">I", len(answer)) + answer)
                assert request[0] == SIGN
                says_nothing(connection)

        with speaking(tmp_path / "agent", monkeypatch, lists_only):
            error = _failure(cluster, tmp_path)
        assert (error.code, error.values["agent"]) == ("agent_hangs", f"{tmp_path}/agent")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "real"))
        _open(cluster, tmp_path).close()


@pytest.mark.parametrize(
    "body",
    [b"\x05", b"\x0c", b"\x0c\xff\xff\xff\xff", b"\x0c\0\0\0\x01\0\0\0\x04bla!\0\0\0\x01\xff", b"\x00" * 300_000, b""],
    ids=("refuses", "empty", "too many keys", "no key", "too long", "nothing"),
)
def test_an_agent_that_answers_nonsense_is_named_or_has_no_keys(
    cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    with speaking(tmp_path / "agent", monkeypatch, _answer(body)):
        error = _failure(cluster, tmp_path)
    assert error.code in ("agent_failed", "agent_hangs", "authentication")
    assert error.is_local


def test_a_key_that_needs_no_agent_is_used_though_the_agent_hangs(
    cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with speaking(tmp_path / "agent", monkeypatch, says_nothing):
        _open(cluster, tmp_path, str(cluster.identity_file)).close()
        key = make_key(tmp_path / "locked", "-t", "ed25519", "-a", "1", "-N", "correct horse")
        assert _failure(cluster, tmp_path, key).code == "agent_hangs"


def test_an_agent_that_has_ended_is_none(cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    assert Agent("node", Deadline(5)).listed() == ()
    assert _failure(cluster, tmp_path).code == "authentication"


def test_an_agent_with_no_room_for_another_caller_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "agent"))
        server.listen(0)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        callers = [Agent("node", Deadline(0.2)) for _ in range(8)]
        with pytest.raises(NodeError, match="agent_hangs"):
            all(caller._open_socket() for caller in callers)
        for caller in callers:
            caller.close()


ASKING = """\
import sys
from pathlib import Path
from backend.cluster.node_group import try_all
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh import connection
from backend.cluster.ssh.node import connect
from backend.job.cluster import Host
from tests.contract.test_agent import OPEN_S, negotiate_and_hurry
connection._negotiate = negotiate_and_hurry
hosts = [Host(address="127.0.0.1", port=int(sys.argv[1])) for _ in range(20)]
known = KnownHosts(Path(sys.argv[2]))
_, failures = try_all(hosts, lambda _, host: connect(host, known, timeout_s=OPEN_S), 600)
print(sorted({failure.code for failure in failures.values()}), len(failures))
"""


def test_a_command_ends_by_itself_though_the_agent_hangs(
    cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with speaking(tmp_path / "agent", monkeypatch, says_nothing):
        done = subprocess.run(
            [sys.executable, "-c", ASKING, str(cluster.hosts()[0].port), str(cluster.folder / "known_hosts")],
            capture_output=True, text=True, timeout=300, env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
    assert done.stdout == "['agent_hangs'] 20\n", done.stderr


def test_the_host_of_an_error_is_the_one_that_was_asked_for(
    cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with speaking(tmp_path / "agent", monkeypatch, says_nothing):
        error = _failure(cluster, tmp_path)
    assert error.node == Host(address="127.0.0.1", port=cluster.hosts()[0].port).name


def test_check_names_the_agent_in_place_of_the_nodes_and_ends(
    cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = stand_in_job(tmp_path, "exit 1") | {"cluster": cluster.cluster_mapping(f"{tmp_path}/python")}
    for host in mapping["cluster"]["hosts"]:
        host.pop("identity_file")
    (tmp_path / "job.yaml").write_text(json.dumps(mapping))
    (tmp_path / "home").mkdir(mode=0o700)
    shutil.copy(cluster.folder / "known_hosts", tmp_path / "home")
    environment = {**os.environ, "HOME": str(tmp_path), "MEGABOARD_HOME": str(tmp_path / "home")}
    with speaking(tmp_path / "agent", monkeypatch, says_nothing):
        done = subprocess.run(
            [sys.executable, "-m", "app.main", "check", "--lang", "en", str(tmp_path / "job.yaml")],
            capture_output=True, text=True, timeout=300, env={**environment, "SSH_AUTH_SOCK": str(tmp_path / "agent")},
        )  # fmt: skip
    text = done.stdout + done.stderr
    assert done.returncode not in (0, None), text
    assert said(text, "problem.agent_hangs")["agent"] == f"{tmp_path}/agent"
    assert "sshd listens" not in text
