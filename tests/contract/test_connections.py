"""Connections to nodes through real sshd servers: agents, jump hosts, dropped connections, few channels."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.node import NodeError
from backend.cluster.ssh.config import ALLOWED, find_target
from backend.cluster.ssh.connection import open_connection
from backend.cluster.ssh.host_keys import KnownHosts, UnknownHostKey
from backend.cluster.ssh.node import SshNode, connect
from backend.job.cluster import Host
from tests.contract.test_ssh import make_key

pytestmark = pytest.mark.contract


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Yield the socket of a real ssh-agent without keys."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("there is no ssh-agent")
    path_ = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path_], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path_))
    while not path_.exists():
        assert process.poll() is None
    yield
    process.terminate()
    process.wait()


def test_a_key_that_the_agent_holds_needs_no_passphrase_and_the_agent_stays_here(
    agent: None, cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "key", "-t", "ed25519", "-a", "1", "-N", "correct horse")
    with (cluster.folder / "authorized_keys").open("a") as file:
        file.write(Path(f"{key}.pub").read_text())
    ask = tmp_path / "ask"
    ask.write_text("#!/bin/sh\necho correct horse\n")
    ask.chmod(0o700)
    environment = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
    subprocess.run(["ssh-add", "-q", key], env=environment, check=True, stdin=subprocess.DEVNULL)
    # Of a key that only the agent has, on a token for example, users name the public half.
    for name in (key, f"{key}.pub"):
        node = connect(replace(cluster.hosts()[0], identity_file=name), known_hosts)
        assert node.run(["sh", "-c", "echo ${SSH_AUTH_SOCK:-no agent}"], timeout_s=60).out == "no agent\n"
        node.close()


def test_the_key_of_a_host_in_between_is_verified_too(cluster: LocalNodes, tmp_path: Path) -> None:
    first, second = cluster.hosts()[:2]
    kinds = (cluster.folder / "host1.pub").read_text().split()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{second.port} {kinds[0]} {kinds[1]}\n")
    with pytest.raises(UnknownHostKey) as caught:
        connect(replace(second, proxy_jump=f"{first.user}@127.0.0.1:{first.port}"), KnownHosts(tmp_path / "known"))
    assert (caught.value.host_key.port, caught.value.key) == (first.port, "proxy_jump")


def test_two_hosts_in_between_are_passed_in_their_order(cluster: LocalNodes, known_hosts: KnownHosts) -> None:
    first, second, third = cluster.hosts()[:3]
    jumps = f"{first.user}@127.0.0.1:{first.port},{second.user}@127.0.0.1:{second.port}"
    node = connect(replace(third, proxy_jump=jumps), known_hosts)
    assert node.run(["printenv", "MEGABOARD_NODE"], timeout_s=60).out == "node2\n"
    node.close()


def test_a_host_in_between_has_keys_of_its_own_in_the_ssh_configuration(
    cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path
) -> None:
    """Without keys of its own, it is offered all keys of the node behind it."""
    first, second = cluster.hosts()[:2]
    other = make_key(tmp_path / "other", "-t", "ed25519", "-N", "")
    entries = {"bastion": (first, [first.identity_file]), "plain": (first, []), "*": (second, [])}
    lines = ["Host gpu*", f"IdentityFile {other}", f"IdentityFile {second.identity_file}"]
    for name, (host, keys) in entries.items():
        lines += [f"Host {name}", "HostName 127.0.0.1", f"Port {host.port}", f"User {host.user}"]
        lines += [f"IdentityFile {key}" for key in keys]
    (tmp_path / "config").write_text("\n".join((*lines, "")))
    for jump in ("bastion", "plain"):
        connection = open_connection(Host(address="gpu1", proxy_jump=jump), known_hosts, ssh_folder=tmp_path)
        assert connection.alive
        connection.close()


@pytest.mark.parametrize(("drops", "works"), [(2, True), (3, False)])
def test_a_connection_that_is_dropped_before_the_banner_is_tried_three_times(
    cluster: LocalNodes, tmp_path: Path, drops: int, works: bool
) -> None:
    """sshd drops connections beyond MaxStartups in this way."""
    host = cluster.hosts()[0]
    with Dropping(host.port, drops) as port:
        kinds = (cluster.folder / "host0.pub").read_text().split()
        (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {kinds[0]} {kinds[1]}\n")
        waits: list[float] = []
        target = replace(host, port=port)
        if works:
            connection = open_connection(target, KnownHosts(tmp_path / "known"), sleep=waits.append)
            assert connection.alive
            connection.close()
        else:
            with pytest.raises(NodeError, match="unreachable"):
                open_connection(target, KnownHosts(tmp_path / "known"), sleep=waits.append)
    assert len(waits) == 2
    assert waits[1] >= 0.2


class Dropping:
    """A proxy before an sshd that drops the first `drops` connections, and later ones after some of their bytes."""

    def __init__(self, port: int, drops: int, *, after_bytes: int | None = None) -> None:
        self._port, self._drops, self._after_bytes = port, drops, after_bytes
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._server.getsockname()[1])

    def __exit__(self, *error: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for item in self._open:
            item.close()
        self._thread.join()

    def _serve(self) -> None:
        for number in range(100):
            try:
                here, _ = self._server.accept()
            except OSError:
                return
            if number < self._drops:
                here.close()
                continue
            connection = socket.create_connection(("127.0.0.1", self._port))
            self._open += [here, connection]
            for source, sink, limit in ((here, connection, self._after_bytes), (connection, here, None)):
                threading.Thread(target=_pass_on, args=(source, sink, limit), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
    passed = 0
    try:
        while data := source.recv(1 << 16):
            passed += len(data)
            if limit is not None and passed > limit:
                source.shutdown(socket.SHUT_RDWR)
                return
            sink.sendall(data)
    except OSError:
        pass


def test_a_node_never_has_more_than_four_channels(cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path) -> None:
    node = connect(cluster.hosts()[0], known_hosts)
    together = threading.Barrier(9)

    def work(number: int) -> None:
        together.wait()
        node.run(["sleep", "0.05"], timeout_s=30)
        node.write(f"{tmp_path}/{number}", b"x")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    together.wait()
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, channels(node))
    assert 1 <= most <= 4
    node.close()


def channels(node: SshNode) -> int:
    """Return the channels in use. paramiko keeps a closed one until the server has confirmed it."""
    connection = node._connection
    return sum(not channel.closed for channel in connection.transport._channels.values()) if connection else 0


@pytest.mark.parametrize("failure", [EOFError(), TimeoutError("not done within 1 s")])
def test_a_file_channel_that_cannot_be_closed_locks_no_files_and_hides_no_error(
    cluster: LocalNodes, known_hosts: KnownHosts, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """It is given up in two ways: to make room for a command, and after a failed answer."""

    def fail() -> None:
        raise failure

    def answers_nonsense(path: str) -> None:
        raise paramiko.SFTPError("nonsense")

    node = connect(cluster.hosts()[0], known_hosts)
    assert node.exists("/tmp")
    assert node._connection
    assert node._sftp
    opened = node._connection.transport.open_session

    def has_no_room_at_first(**options: float) -> paramiko.Channel:
        monkeypatch.setattr(node._connection.transport, "open_session", opened)  # type: ignore[union-attr]
        raise paramiko.ChannelException(4, "no room")

    monkeypatch.setattr(node._connection.transport, "open_session", has_no_room_at_first)
    monkeypatch.setattr(node._sftp, "close", fail)
    assert node.run(["echo", "done"], timeout_s=60).out == "done\n"
    assert node.exists("/tmp")
    monkeypatch.setattr(node._sftp, "close", fail)
    monkeypatch.setattr(node._sftp, "stat", answers_nonsense)
    with pytest.raises(NodeError, match="shell_prints"):
        node.exists("/tmp")
    assert node.exists("/tmp")
    node.close()


@pytest.fixture
def config(tmp_path: Path, cluster: LocalNodes) -> Path:
    """Write an ~/.ssh/config that reaches node 0 only through programs."""
    host = cluster.hosts()[0]
    ran = tmp_path / "ran"
    lines = (
        f'Match host gpu0 exec "echo match >> {ran}"',
        f"  User {host.user}",
        f"  IdentityFile {host.identity_file}",
        "Include included",
        "Host gpu0",
        f"  ProxyCommand {sys.executable} {tmp_path}/relay.py 127.0.0.1 {host.port} proxy %n %h %p %r 100%% 2>> {ran}",
    )
    (tmp_path / "config").write_text("\n".join((*lines, "")))
    (tmp_path / "relay.py").write_text(RELAY)
    return tmp_path / "config"


def test_programs_of_the_ssh_configuration_are_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOWED, raising=False)
    with pytest.raises(NodeError, match="match_exec_refused"):
        find_target(Host(address="gpu0"), config.parent)
    assert find_target(Host(address="gpu1"), config.parent).user == getpass.getuser()
    config.write_text("Host gpu0\n  ProxyCommand true\n")
    with pytest.raises(NodeError, match="proxy_command_refused"):
        find_target(Host(address="gpu0"), config.parent)
    assert not (config.parent / "ran").exists()


def test_programs_of_the_ssh_configuration_run_where_the_operator_allows_them(
    config: Path, cluster: LocalNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    monkeypatch.setenv(ALLOWED, "1")
    target = find_target(Host(address="gpu0"), config.parent)
    assert target.identity_files == (cluster.identity_file,)
    kinds = (cluster.folder / "host0.pub").read_text().split()
    (tmp_path / "known").write_text(f"gpu0 {kinds[0]} {kinds[1]}\n")
    connection = open_connection(Host(address="gpu0"), KnownHosts(tmp_path / "known"), ssh_folder=config.parent)
    assert connection.alive
    connection.close()
    text = (tmp_path / "ran").read_text()
    assert "match\n" in text
    assert f"proxy gpu0 gpu0 22 {cluster.hosts()[0].user} 100%\n" in text


# What netcat does.
RELAY = """\
import os, socket, sys, threading
print(*sys.argv[3:], file=sys.stderr, flush=True)
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def out():
    while data := there.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=out, daemon=True).start()
while data := os.read(0, 65536):
    there.sendall(data)
"""


def test_openssh_names_a_configuration_that_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    (tmp_path / "config").write_text("Nonsense x\n")
    monkeypatch.setenv(ALLOWED, "1")
    with pytest.raises(NodeError, match="bad_ssh_config") as caught:
        find_target(Host(address="x"), tmp_path)
    assert "onsense" in str(caught.value.values["detail"])


def test_the_usual_keys_are_not_named_ones_for_openssh_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    monkeypatch.setenv(ALLOWED, "1")
    target = find_target(Host(address="x", user="me", port=2200), tmp_path)
    assert (target.user, target.port, target.identity_files, target.jump) == ("me", 2200, (), None)
