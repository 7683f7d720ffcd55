"""Behaviour that only a real sshd shows: accepted and refused log-ins with their reasons, and lost connections."""

import getpass
import json
import os
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes, _process_tree
from backend.cluster.node import NodeError
from backend.cluster.ssh.config import find_target
from backend.cluster.ssh.connection import open_connection
from backend.cluster.ssh.host_keys import KnownHosts, UnknownHostKey
from backend.cluster.ssh.node import connect
from backend.cluster.ssh.passphrases import PASSPHRASES, Passphrases
from backend.job.cluster import Host
from backend.node.supervisor.processes import read_process, send_signal
from tests.nodes import signal_sessions
from tests.waiting import while_it_runs

pytestmark = pytest.mark.contract


def refused(host: Host, known_hosts: KnownHosts, passphrases: Passphrases = PASSPHRASES) -> NodeError:
    with pytest.raises(NodeError) as caught:
        connect(host, known_hosts, timeout_s=60, passphrases=passphrases).close()
    assert caught.value.node == host.name
    return caught.value


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def make_key(path: Path, *options: str) -> str:
    subprocess.run(["ssh-keygen", "-q", "-f", str(path), *(options or ("-t", "ed25519", "-N", ""))], check=True)
    return str(path)


def test_a_new_host_is_shown_and_let_in_once_confirmed(cluster: LocalNodes, tmp_path: Path) -> None:
    host = cluster.hosts()[1]
    known_hosts = KnownHosts(tmp_path / "known")
    error = refused(host, known_hosts)
    assert isinstance(error, UnknownHostKey)
    printed = subprocess.run(["ssh-keygen", "-lf", cluster.folder / "host1.pub"], capture_output=True, text=True)
    assert error.host_key.fingerprint == printed.stdout.split()[1]
    known_hosts.accept(error.host_key)
    connect(host, known_hosts).close()


def test_a_changed_host_key_is_a_hard_stop(cluster: LocalNodes, tmp_path: Path) -> None:
    host = cluster.hosts()[0]
    other = (cluster.folder / "host1.pub").read_text().split()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{host.port} {other[0]} {other[1]}\n")
    error = refused(host, KnownHosts(tmp_path / "known"))
    assert error.code == "host_key_changed"
    assert error.values["where"] == f"{tmp_path / 'known'}:1"


def test_a_key_that_the_node_does_not_know_is_named(
    cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path
) -> None:
    host = replace(cluster.hosts()[0], identity_file=make_key(tmp_path / "wrong"))
    error = refused(host, known_hosts)
    assert error.code == "authentication"
    error.rank = 2
    assert error.problem.field == "cluster.hosts[2].identity_file"
    assert error.values["identity_file"] == str(tmp_path / "wrong")
    assert error.values["user"] == getpass.getuser()


@pytest.mark.parametrize(("content", "code"), [(None, "bad_identity_file"), ("nonsense", "bad_identity_file")])
def test_a_key_file_that_is_none_is_named(
    cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path, content: str | None, code: str
) -> None:
    if content:
        (tmp_path / "key").write_text(content)
    error = refused(replace(cluster.hosts()[0], identity_file=str(tmp_path / "key")), known_hosts)
    assert error.code == code


@pytest.mark.parametrize("options", [("-t", "ed25519"), ("-t", "rsa", "-b", "2048", "-m", "PEM"), ("-t", "ecdsa")])
def test_a_protected_key_needs_its_passphrase(
    cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path, options: tuple[str, ...]
) -> None:
    key = make_key(tmp_path / "key", *options, "-a", "1", "-N", "correct horse")
    host = replace(cluster.hosts()[0], identity_file=key)
    with (cluster.folder / "authorized_keys").open("a") as file:
        file.write(Path(f"{key}.pub").read_text())
    request = refused(host, known_hosts)
    assert (request.code, request.values["identity_file"]) == ("passphrase_needed", key)
    passphrases = Passphrases()
    passphrases.put(key, "wrong")
    assert refused(host, known_hosts, passphrases).code == "passphrase_wrong"
    passphrases.put(key, "correct horse")
    assert "horse" not in repr(passphrases)
    node = connect(host, known_hosts, passphrases=passphrases)
    node.close()
    assert node.exists("/"), "a connection that is opened again asks nobody"
    node.close()


def test_a_key_in_the_home_of_nobody_is_named(cluster: LocalNodes, known_hosts: KnownHosts) -> None:
    error = refused(replace(cluster.hosts()[0], identity_file="~no-such-user/id"), known_hosts)
    assert (error.code, error.key) == ("bad_identity_file", "identity_file")


def test_what_is_no_file_of_a_keys_size_is_not_read(
    cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "waits-for-ever")
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    for name in ("waits-for-ever", "large"):
        error = refused(replace(cluster.hosts()[0], identity_file=str(tmp_path / name)), known_hosts)
        assert (error.code, error.values["detail"]) == ("bad_identity_file", "not a file, or larger than any key")


def test_a_host_that_is_down_is_named_with_its_port(known_hosts: KnownHosts) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    error = refused(Host(address="127.0.0.1", port=port), known_hosts)
    assert error.code == "unreachable"
    assert error.values["port"] == port


def test_a_host_that_accepts_and_says_nothing_is_given_up_in_time(known_hosts: KnownHosts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = Host(address="127.0.0.1", port=server.getsockname()[1])
        with pytest.raises(NodeError) as caught:
            connect(host, known_hosts, timeout_s=1)
    assert caught.value.code == "unreachable"


def test_a_name_that_does_not_resolve_is_named(known_hosts: KnownHosts) -> None:
    assert refused(Host(address="no-such-host.invalid"), known_hosts).code == "address_unknown"


def test_a_lost_connection_is_opened_again_by_the_next_call(
    cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path
) -> None:
    node = connect(cluster.hosts()[3], known_hosts)
    assert node.exists("/tmp")
    command = while_it_runs(tmp_path / "runs", lambda: signal_sessions(cluster, 3, signal.SIGKILL))
    with pytest.raises(NodeError) as caught:
        node.run(command, timeout_s=60)
    assert caught.value.code == "lost"
    assert node.run(["echo", "again"], timeout_s=60).out == "again\n"
    assert node.exists("/tmp")
    node.close()


def test_a_connection_whose_other_end_says_nothing_any_more_is_replaced(
    cluster: LocalNodes, known_hosts: KnownHosts
) -> None:
    """Behind a jump host the kernel cannot notice it, because the jump host accepts the bytes."""
    first, second = cluster.hosts()[1:3]
    host = replace(second, proxy_jump=f"{first.user}@127.0.0.1:{first.port}")
    node = connect(host, known_hosts, timeout_s=60)
    stopped = signal_sessions(cluster, 2, signal.SIGSTOP)
    try:
        node._timeout_s = 3  # of this call alone: a handshake on a busy machine takes longer
        with pytest.raises(NodeError, match="timeout"):
            node.run(["true"], timeout_s=60)
        node._timeout_s = 60
        assert node.run(["echo", "again"], timeout_s=60).out == "again\n"
    finally:
        node.close()
        for process in stopped:
            send_signal(process, signal.SIGKILL)


def test_files_are_read_on_when_the_server_lost_their_channel_alone(
    cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path
) -> None:
    """sshd serves files in a process of its own, which may die while the connection lives."""
    node = connect(cluster.hosts()[3], known_hosts)
    node.write(f"{tmp_path}/file", b"kept")
    connection = node._connection
    kill_file_server(cluster, 3)
    assert node.read(f"{tmp_path}/file") == b"kept"
    assert node._connection is connection
    node.close()


def kill_file_server(cluster: LocalNodes, rank: int) -> None:
    server = json.loads((cluster.folder / "nodes.json").read_text())[str(rank)]
    listener = read_process(server["pid"])
    assert listener
    tree = _process_tree(listener)
    parents = {process.parent for process in tree}
    leaves = [process for process in tree if process.pid not in parents and process is not listener]
    for process in leaves:
        send_signal(process, 9)


def test_a_node_behind_another_is_reached_through_it(cluster: LocalNodes, known_hosts: KnownHosts) -> None:
    first, second = cluster.hosts()[:2]
    host = replace(second, proxy_jump=f"{first.user}@127.0.0.1:{first.port}")
    node = connect(host, known_hosts)
    assert node.run(["printenv", "MEGABOARD_NODE"], timeout_s=60).out == "node1\n"
    node.close()


@pytest.mark.parametrize(
    ("jump", "code"), [("127.0.0.1:1", "unreachable"), ("127.0.0.1:65536", "bad_proxy_jump")], ids=("down", "no_port")
)
def test_a_host_in_between_that_fails_is_reported_at_its_own_field(
    cluster: LocalNodes, known_hosts: KnownHosts, jump: str, code: str
) -> None:
    with pytest.raises(NodeError) as caught:
        connect(replace(cluster.hosts()[1], proxy_jump=jump), known_hosts, timeout_s=60)
    assert (caught.value.code, caught.value.key) == (code, "proxy_jump")


def test_the_ssh_configuration_is_followed(cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path) -> None:
    host = cluster.hosts()[0]
    lines = ("Host gpu*", "HostName 127.0.0.1", f"Port {host.port}", f"User {host.user}")
    (tmp_path / "config").write_text("\n".join((*lines, f"IdentityFile {host.identity_file}", "")))
    connection = open_connection(Host(address="gpu7"), known_hosts, ssh_folder=tmp_path)
    assert connection.alive
    connection.close()


def test_the_job_file_wins_over_the_ssh_configuration(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host *\n  User other\n  Port 2200\n  IdentityFile /other\n  ProxyJump a\n")
    host = Host(address="x", user="me", port=2300, identity_file="/mine", proxy_jump="b")
    target = find_target(host, tmp_path)
    assert (target.user, target.port, target.identity_files, target.jump) == ("me", 2300, (Path("/mine"),), "b")


def test_nothing_in_the_ssh_configuration_runs_a_program(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f'Match exec "touch {tmp_path}/ran"\n  User evil\n')
    with pytest.raises(NodeError, match="match_exec_refused"):
        find_target(Host(address="x"), tmp_path)
    (tmp_path / "config").write_text(f"Host x\n  ProxyCommand touch {tmp_path}/ran\n")
    with pytest.raises(NodeError, match="proxy_command_refused"):
        find_target(Host(address="x"), tmp_path)
    assert not (tmp_path / "ran").exists()
