"""The demo cluster leaves nothing behind and touches only its own files and processes."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo import local_nodes as demo_module
from app.demo.local_nodes import DemoError, LocalNodes
from backend.cluster.node import ask
from backend.cluster.node_programs import node_program
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.node import connect
from backend.node.supervisor.processes import Process, find_process, members
from tests.nodes import ssh_nodes
from tests.waiting import wait_for

pytestmark = pytest.mark.contract


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[LocalNodes]:
    with ssh_nodes(tmp_path / "demo", nodes=2) as demo:
        yield demo


def servers(demo: LocalNodes) -> list[Process | None]:
    nodes = json.loads((demo.folder / "nodes.json").read_text())
    return [find_process(node["pid"], node["start"]) for node in nodes.values()]


def test_a_second_start_finds_the_same_servers(demo: LocalNodes) -> None:
    before = [(server.pid, server.start) for server in servers(demo) if server]
    assert LocalNodes(demo.folder, nodes=2).start() == demo.hosts()
    assert [(server.pid, server.start) for server in servers(demo) if server] == before
    assert len(before) == 2


def test_a_server_that_died_is_started_again_on_its_port(demo: LocalNodes) -> None:
    hosts = demo.hosts()
    first = servers(demo)[0]
    assert first
    demo_module.send_signal(first, 9)
    assert demo_module._wait_gone([first], 5) == []
    assert demo.start() == hosts
    assert None not in servers(demo)


def test_stop_ends_servers_and_sessions_by_identity_and_can_be_repeated(demo: LocalNodes) -> None:
    known = KnownHosts(demo.folder / "app", demo.folder / "known_hosts")
    node = connect(demo.hosts()[0], known)
    assert node.exists("/tmp")
    sessions = [child for server in servers(demo) if server for child in demo_module._process_tree(server)]
    assert len(sessions) > 2
    ports = [host.port for host in demo.hosts()]
    assert demo.stop() == []
    assert [find_process(process.pid, process.start) for process in sessions] == [None] * len(sessions)
    for port in ports:
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", port)) != 0
    assert demo.stop() == []
    node.close()


def test_the_next_start_has_the_same_addresses_so_confirmed_host_keys_stay_known(demo: LocalNodes) -> None:
    before = demo.hosts()
    assert demo.stop() == []
    assert demo.start() == before


def test_stop_does_not_touch_a_process_that_reuses_a_recorded_id(demo: LocalNodes) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        path = demo.folder / "nodes.json"
        recorded = json.loads(path.read_text())
        path.write_text(json.dumps({**recorded, "9": {"pid": stranger.pid, "start": 1, "port": 1}}))
        assert demo.stop() == []
        assert stranger.poll() is None
        stranger.kill()


def test_stop_ends_the_runs_on_the_nodes(demo: LocalNodes) -> None:
    known = KnownHosts(demo.folder / "app", demo.folder / "known_hosts")
    node = connect(demo.hosts()[0], known)
    folder = demo.run_root / "run" / "1" / "node0"
    node.make_folder(str(folder))
    (folder / "supervisor.py").write_bytes(node_program("supervisor.py"))
    lock = str(demo.run_root / "locks" / "x")
    spec = {"protocol": 1, "run": "run", "attempt": 1, "node_rank": 0, "mark": f"{demo.folder}.0", "environment": {}}
    spec |= {"argv": ["/bin/sleep", "60"], "lock": lock, "grace_s": 1, "stall_s": 60}
    node.write(str(folder / "spec.json"), json.dumps(spec).encode())
    argv = [sys.executable, str(folder / "supervisor.py"), "start", str(folder)]
    assert ask(node, argv, timeout_s=60)["ok"]
    # The supervisor answers before its child has begun the program.
    wait_for(lambda: len(members(f"{demo.folder}.0")) == 1)
    node.close()
    assert demo.stop() == []
    assert members(f"{demo.folder}.0") == []


def test_a_process_can_tell_which_node_it_runs_on(demo: LocalNodes) -> None:
    known = KnownHosts(demo.folder / "app", demo.folder / "known_hosts")
    for rank, host in enumerate(demo.hosts()):
        node = connect(host, known)
        assert node.run(["printenv", "MEGABOARD_NODE"], timeout_s=60).out == f"node{rank}\n"
        node.close()


@pytest.mark.parametrize(
    ("manager", "command"), [(None, "apt-get install openssh-server"), ("pacman", "pacman -S openssh")]
)
def test_a_missing_sshd_is_an_error_with_the_command_of_this_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manager: str | None, command: str
) -> None:
    monkeypatch.setattr(demo_module.shutil, "which", lambda name, **_: manager if name == manager else None)
    with pytest.raises(DemoError, match=command):
        LocalNodes(tmp_path).start()
