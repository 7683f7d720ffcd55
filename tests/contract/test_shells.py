"""Nodes whose shell start-up files print, or exit, at every command. A real sshd starts a shell for each command."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.demo import local_nodes
from backend.cluster.inventory.software import read_software
from backend.cluster.node import Node, NodeError, ask
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.node import connect
from backend.job.cluster import Environment
from tests.nodes import ssh_nodes

pytestmark = pytest.mark.contract

ANSWER = ["sh", "-c", 'echo "$2{\\"yes\\": 1}"', "sh"]
OpenNode = Callable[[str, str], Node]


@pytest.fixture
def open_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenNode]:
    """Return a node that runs a command before each command and before it serves files."""
    with ExitStack() as stack:

        def make(command: str, files: str) -> Node:
            serve = next(
                item
                for item in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server")
                if Path(item).exists()
            )
            login = tmp_path / "login"
            login.write_text(
                f'#!/bin/sh\ncase "$SSH_ORIGINAL_COMMAND" in\n*sftp*) {files}\nexec {serve} ;;\n'
                f'*) {command}\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND" ;;\nesac\n'
            )
            login.chmod(0o755)
            configuration = local_nodes.CONFIGURATION.replace("internal-sftp", serve)
            monkeypatch.setattr(local_nodes, "CONFIGURATION", f"{configuration}ForceCommand {login}\n")
            nodes = stack.enter_context(ssh_nodes(tmp_path, nodes=1))
            node = connect(nodes.hosts()[0], KnownHosts(tmp_path / "app", nodes.folder / "known_hosts"))
            stack.callback(node.close)
            return node

        yield make


@pytest.mark.parametrize("noise", ["echo welcome", "printf unended", "head -c 300000 /dev/zero | tr '\\0' ="])
def test_an_answer_is_found_behind_whatever_was_printed(open_node: OpenNode, noise: str) -> None:
    node = open_node(noise, "")
    assert ask(node, ANSWER, timeout_s=60) == {"yes": 1}


def test_a_shell_that_prints_where_files_are_to_come_is_told_as_that(open_node: OpenNode) -> None:
    node = open_node("", "echo Welcome to the cluster")
    for act in (lambda: node.read("/etc/hostname"), lambda: node.exists("/"), lambda: node.write("/tmp/x", b"")):
        with pytest.raises(NodeError) as caught:
            act()
        assert caught.value.code == "shell_prints"
    assert ask(node, ANSWER, timeout_s=60) == {"yes": 1}


def test_a_shell_that_leaves_before_the_command_is_not_taken_for_a_broken_python(open_node: OpenNode) -> None:
    node = open_node("echo no licence >&2; exit 3", "")
    with pytest.raises(NodeError) as caught:
        read_software(node, Environment(python="/usr/bin/python3"))
    assert (caught.value.code, caught.value.values["exit"]) == ("shell_leaves", 3)
