"""Faults of the server's own machine with a real sshd: the error names them, and after the fix the connection works."""

import errno
import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.deadlines import Deadline
from backend.cluster.node import NodeError
from backend.cluster.ssh.config import Target
from backend.cluster.ssh.connect_errors import explain
from backend.cluster.ssh.dialling import dial_address
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.node import SshNode, connect
from tests.contract.test_connections import Dropping
from tests.threads import without_threads

pytestmark = pytest.mark.contract

TARGET = Target(node="n", address="127.0.0.1", port=22, user="u", identity_files=(), jump=None)

EXHAUSTED = """\
import json, os, resource, sys
from pathlib import Path
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.node import NodeError
from backend.cluster.ssh.node import SshNode
from backend.job.cluster import Host

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
node = SshNode(Host(**json.loads(sys.argv[1])), KnownHosts(Path(sys.argv[2])), timeout_s=30)
said = [node.exists("/tmp")]

def take_all(but):
    taken = []
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break
    for _ in range(but):
        os.close(taken.pop())
    return taken

def ask(call):
    try:
        call()
        return "answered"
    except NodeError as error:
        return [error.code, error.is_local]

held = take_all(0)
said.append(ask(lambda: node.run(["true"], timeout_s=30)))
node.close()
for but in range(8):
    for one in held:
        os.close(one)
    held = take_all(but)
    said.append(ask(lambda: node.exists("/tmp")))
    node.close()
for one in held:
    os.close(one)
said.append(ask(lambda: node.run(["true"], timeout_s=30)))
print(json.dumps(said), flush=True)
"""


def test_a_process_without_descriptors_says_so_wherever_the_connection_needs_one(cluster: LocalNodes) -> None:
    """This is the reported fault: a reconnect found no descriptor, and the node was reported lost."""
    host = cluster.hosts()[0]
    values = {"address": host.address, "port": host.port, "user": host.user, "identity_file": host.identity_file}
    done = subprocess.run(
        [sys.executable, "-c", EXHAUSTED, json.dumps(values), cluster.folder / "known_hosts"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *without, last = json.loads(done.stdout)
    assert (first, last) == (True, "answered")
    failed = [outcome for outcome in without if outcome != "answered"]
    assert len(failed) >= 2
    assert all(outcome == ["local_resources", True] for outcome in failed), without


def test_a_process_without_threads_says_so_and_connects_once_there_are_some(
    cluster: LocalNodes, known_hosts: KnownHosts
) -> None:
    node = SshNode(cluster.hosts()[0], known_hosts)
    with without_threads(), pytest.raises(NodeError) as caught:
        node.exists("/tmp")
    assert (caught.value.code, caught.value.is_local) == ("local_resources", True)
    assert node.exists("/tmp")
    node.close()


def test_a_known_hosts_file_that_cannot_be_read_is_named(cluster: LocalNodes, tmp_path: Path) -> None:
    with pytest.raises(NodeError) as caught:
        connect(cluster.hosts()[0], KnownHosts(tmp_path))  # It is a folder.
    assert (caught.value.code, caught.value.is_local) == ("bad_known_hosts", True)
    assert str(tmp_path) in caught.value.values["detail"]


def test_a_key_that_is_gone_or_not_let_in_says_nothing_of_the_node(
    cluster: LocalNodes, known_hosts: KnownHosts, tmp_path: Path
) -> None:
    for name, code in (("none", "bad_identity_file"), ("other", "authentication")):
        if name == "other":
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
        with pytest.raises(NodeError) as caught:
            connect(replace(cluster.hosts()[0], identity_file=str(tmp_path / name)), known_hosts)
        assert (caught.value.code, caught.value.is_local) == (code, True)


def test_a_connection_that_ends_during_the_log_in_is_no_refusal(cluster: LocalNodes, tmp_path: Path) -> None:
    """A node that dies at that moment is unreachable, whatever it sent last."""
    host = cluster.hosts()[0]
    kinds = (cluster.folder / "host0.pub").read_text().split()
    codes = set()
    for sent in range(1500, 4500, 100):
        with Dropping(host.port, 0, after_bytes=sent) as port:
            known = tmp_path / f"known{sent}"
            known.write_text(f"[127.0.0.1]:{port} {kinds[0]} {kinds[1]}\n")
            try:
                connect(replace(host, port=port), KnownHosts(known)).close()
                codes.add("connected")
            except NodeError as error:
                codes.add(error.code)
    assert codes == {"unreachable", "connected"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "local_resources"),
        (OSError(errno.ENFILE, "Too many open files in system"), "local_resources"),
        (OSError(errno.ENOBUFS, "No buffer space"), "local_resources"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "local_network"),
        (OSError(errno.EPERM, "Operation not permitted"), "local_network"),
        (OSError(errno.ENETDOWN, "Network is down"), "local_network"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "address_unknown"),
        (OSError(errno.ENETUNREACH, "said by a router: there is a route here"), "unreachable"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "unreachable"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "unreachable"),
        (TimeoutError("timed out"), "unreachable"),
        (EOFError(), "unreachable"),
    ],
)
def test_what_this_machine_refuses_is_distinguished_from_what_the_network_says(error: Exception, code: str) -> None:
    result = explain(error, TARGET)
    assert (result.code, result.is_local) == (code, code != "unreachable")


def _places(monkeypatch: pytest.MonkeyPatch, *places: tuple[int, object]) -> None:
    result = [(family, socket.SOCK_STREAM, 0, "", address) for family, address in places]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: result)


NO_FAMILY = (200, ("::1", 22, 0, 0))
"""As IPv6 on a machine that was started without it: its sockets cannot be made."""


@pytest.mark.parametrize("is_first", [True, False])
def test_a_node_that_refuses_is_down_though_this_machine_lacks_its_other_address(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        node = (int(socket.AF_INET), closed.getsockname())
        _places(monkeypatch, *((node, NO_FAMILY) if is_first else (NO_FAMILY, node)))
        with pytest.raises(OSError, match="refused") as caught:
            dial_address("n", 22, Deadline(60))
    assert explain(caught.value, TARGET).code == "unreachable"


def test_an_address_of_a_kind_that_this_machine_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        _places(monkeypatch, NO_FAMILY, (int(socket.AF_INET), server.getsockname()))
        dial_address("n", 22, Deadline(60)).close()
    _places(monkeypatch, NO_FAMILY)
    with pytest.raises(OSError, match="not supported") as caught:
        dial_address("n", 22, Deadline(60))
    assert explain(caught.value, TARGET).code == "local_network"


WITHOUT_A_ROUTE = """\
from pathlib import Path
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.node import NodeError
from backend.cluster.ssh.node import connect
from backend.job.cluster import Host
try:
    connect(Host(address="192.0.2.1"), KnownHosts(Path("/nonexistent")), timeout_s=60)
except NodeError as error:
    print(error.code, error.is_local)
"""


def test_a_machine_without_a_route_is_not_taken_for_a_dead_node() -> None:
    alone = ["unshare", "-rn"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("namespaces are not allowed here")
    done = subprocess.run([*alone, sys.executable, "-c", WITHOUT_A_ROUTE], capture_output=True, text=True, timeout=300)
    assert done.stdout == "local_network True\n", done.stderr
