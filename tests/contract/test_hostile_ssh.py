"""With a hostile server every call ends in time, names its node and leaves nothing behind."""

import getpass
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.deadlines import Deadline
from backend.cluster.node import NodeError
from backend.cluster.ssh.config import Target
from backend.cluster.ssh.connection import Connection, _negotiate
from backend.cluster.ssh.dialling import dial_by_program
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.node import SshNode, connect
from backend.job.cluster import Host
from tests.contract import hostile_ssh as hostile
from tests.contract.hostile_ssh import Hooks, hostile_server
from tests.waiting import wait_for

pytestmark = [pytest.mark.contract, pytest.mark.slow]

SHORT_S = 0.15
"""Deadline of a call that ends by it."""
LONG_S = 60.0
"""Deadline of a call that something else ends, on a busy machine too."""
MARGIN_S = 20.0
"""A call that hangs lasts for ever."""
MEMORY_BYTES = 32 << 20
"""Both sides together; a server could send a gigabyte in a few seconds."""
INPUT = bytes(16 << 20)
"""More than a channel's window and the buffers of both kernels take."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A server, the call to it, and the expected end."""

    behaviour: Any
    codes: str
    call: Callable[[SshNode, float], object] = lambda node, timeout_s: node.open()
    ends_at_once: bool = False

    @property
    def connect_s(self) -> float:
        return SHORT_S if self.call is CONNECT and not self.ends_at_once else LONG_S

    @property
    def call_s(self) -> float:
        return LONG_S if self.ends_at_once else SHORT_S


CONNECT = Case.__dataclass_fields__["call"].default


def run(node: SshNode, timeout_s: float) -> object:
    return node.run(["true"], timeout_s=timeout_s)


def feed(node: SshNode, timeout_s: float) -> object:
    return node.run(["cat"], timeout_s=timeout_s, stdin=INPUT)


def read(node: SshNode, timeout_s: float) -> object:
    return node.read("/file", limit=1000)


def write(node: SshNode, timeout_s: float) -> object:
    return node.write("/file", bytes(1000))


def at_connect(behaviour: Any, codes: str = "unreachable", *, ends_at_once: bool = False) -> Case:
    return Case(behaviour=behaviour, codes=codes, ends_at_once=ends_at_once)


def at_run(runs: Any, codes: str = "timeout", *, call: Any = run, ends_at_once: bool = False, **hooks: Any) -> Case:
    return Case(behaviour=Hooks(runs=runs, **hooks), codes=codes, call=call, ends_at_once=ends_at_once)


def at_files(serve: Any, codes: str = "timeout", *, call: Any = read, ends_at_once: bool = False) -> Case:
    return Case(behaviour=Hooks(sftp=serve), codes=codes, call=call, ends_at_once=ends_at_once)


CASES = {
    # before the log-in
    "no banner": at_connect(hostile.silent),
    "a banner by drips": at_connect(hostile.dripping_banner),
    "banner lines without end": at_connect(hostile.endless_banner_lines, ends_at_once=True),
    "a banner of 100 MiB": at_connect(hostile.giant_banner, ends_at_once=True),
    "a web server": at_connect(hostile.web_server, ends_at_once=True),
    "a banner and no more": at_connect(hostile.banner_alone),
    "an old protocol": at_connect(hostile.old_protocol, "old_ssh", ends_at_once=True),
    "noise behind the banner": at_connect(hostile.banner_and_noise, ends_at_once=True),
    "a packet of 2 GiB": at_connect(hostile.giant_packet, ends_at_once=True),
    "a packet by drips": at_connect(hostile.dripping_packet),
    "stalls in the key exchange": at_connect(Hooks(stalls_at=hostile.KEXINIT)),
    "stalls at the new keys": at_connect(Hooks(stalls_at=hostile.NEWKEYS)),
    # log-in
    "stalls in the log-in": at_connect(Hooks(auth=hostile.stalls)),
    "drips in the log-in": at_connect(Hooks(auth=hostile.drips)),
    "refuses slowly": at_connect(Hooks(auth=hostile.fails_slowly), "authentication", ends_at_once=True),
    "wants more than a key": at_connect(Hooks(auth=hostile.wants_more), "authentication", ends_at_once=True),
    "hangs up in the log-in": at_connect(Hooks(auth=hostile.hangs_up), "unreachable", ends_at_once=True),
    "chatters in the log-in": at_connect(Hooks(auth=hostile.chatters), ends_at_once=True),
    "a log-in text of 4 MiB": at_connect(Hooks(banner="x" * (4 << 20)), ends_at_once=True),
    # commands
    "opens no channel": at_run(hostile.silent, opens=hostile.stalls),
    "answers no command": at_run(hostile._nothing, answers_exec=False),
    "floods before the answer": at_run(hostile.flood, "lost", answers_exec=False, ends_at_once=True),
    "stdout without end": at_run(hostile.endless_stdout, "too_much_output", ends_at_once=True),
    "stderr without end": at_run(hostile.endless_stderr, "too_much_output", ends_at_once=True),
    "floods beyond the window": at_run(hostile.flood, "too_much_output lost", ends_at_once=True),
    "prints on after its exit": at_run(hostile.goes_on_after_its_exit, "too_much_output", ends_at_once=True),
    "output by drips": at_run(hostile.drips_output),
    "no exit status": at_run(hostile.no_exit_status),
    "an exit and no end of output": at_run(hostile.no_end_of_output),
    "hangs up in the middle": at_run(hostile.hangs_up_in_the_middle, "lost", ends_at_once=True),
    "reads no input": at_run(hostile.opens_no_window, call=feed),
    "reads input by drips": at_run(hostile.window_by_drips, call=feed),
    "reads no socket": at_run(hostile.reads_no_socket, call=feed, window=1 << 30),
    "ends no key exchange": at_run(hostile.never_ends_a_key_exchange, call=feed),
    "new keys without end": at_run(hostile.never_ends_a_key_exchange),
    "new keys all the time": at_run(hostile.new_keys_all_the_time),
    "asks all the time": at_run(hostile.asks_all_the_time),
    # files
    "no file server": at_files(None, "refused lost", ends_at_once=True),
    "no version of the file server": at_files(hostile.no_version),
    "noise as its version": at_files(hostile.noise_as_version, "shell_prints", ends_at_once=True),
    "a file packet of 2 GiB": at_files(hostile.packet_of_2_gib, "shell_prints", ends_at_once=True),
    "a file packet of 16 MiB": at_files(hostile.packet_of_16_mib),
    "an answer by drips": at_files(hostile.sftp(hostile.drips_an_answer)),
    "answers to other questions": at_files(hostile.sftp(hostile.wrong_ids)),
    "a byte a read": at_files(hostile.sftp(hostile.a_byte_a_read)),
    "wrong lengths": at_files(hostile.sftp(hostile.lies_about_lengths), "node_io lost shell_prints not_a_file timeout"),
    "hangs up while reading": at_files(hostile.sftp(hostile.hangs_up_while_reading), "lost", ends_at_once=True),
    "floods as an answer": at_files(hostile.sftp(hostile.floods_an_answer), "lost shell_prints", ends_at_once=True),
    "ends no write": at_files(hostile.sftp(hostile.ends_no_write), call=write),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(cluster: LocalNodes, known_hosts: KnownHosts) -> Iterator[SshNode]:
    node = connect(cluster.hosts()[0], known_hosts)
    yield node
    node.close()


def node_of(port: int, cluster: LocalNodes, folder: Path, *, connect_s: float, file_s: float) -> SshNode:
    known = folder / "known"
    known.write_text(f"[127.0.0.1]:{port} {hostile.HOST_KEY.get_name()} {hostile.HOST_KEY.get_base64()}\n")
    host = Host(
        address="127.0.0.1", port=port, user=getpass.getuser(), identity_file=str(cluster.hosts()[0].identity_file)
    )
    return SshNode(host, KnownHosts(known), timeout_s=connect_s, file_timeout_s=file_s)


def outcome(act: Callable[[], object], within_s: float) -> object:
    """Return the result or the exception of the call. Raise AssertionError if it does not end in time."""
    ends: list[object] = []

    def work() -> None:
        try:
            ends.append(act())
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(within_s)
    assert ends, f"it did not end within {within_s:.0f} s"
    return ends[0]


def client_threads() -> list[threading.Thread]:
    """Return the threads that calls to a node leave: those of connections and of deadlines."""
    ours = ("past a deadline", "look up")
    return [
        thread_
        for thread_ in threading.enumerate()
        if thread_.name.startswith(ours) or (isinstance(thread_, paramiko.Transport) and not thread_.server_mode)
    ]


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_call_to_a_hostile_server_ends_in_time_names_it_and_leaves_nothing(
    case: Case, cluster: LocalNodes, good: SshNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    good.open()
    before = len(client_threads())
    tracemalloc.start()
    try:
        with hostile_server(case.behaviour) as port:
            node = node_of(port, cluster, tmp_path, connect_s=case.connect_s, file_s=case.call_s)
            if case.call is not CONNECT:
                node.open()
            given_s = case.connect_s if case.call is CONNECT else case.call_s
            end = outcome(lambda: case.call(node, case.call_s), given_s + MARGIN_S)
            assert isinstance(end, NodeError), end
            assert end.code in case.codes.split(), (end, end.__cause__)
            assert (end.node, end.problem.node) == (node.name, node.name)
            assert len(str(end)) < 1_000
            assert outcome(node.close, MARGIN_S) is None
            wait_for(lambda: len(client_threads()) <= before, MARGIN_S)
            assert good.run(["echo", "works"], timeout_s=LONG_S).out == "works\n"
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


def test_an_exit_without_a_close_is_an_exit(cluster: LocalNodes, tmp_path: Path) -> None:
    with hostile_server(Hooks(runs=hostile.no_close)) as port:
        node = node_of(port, cluster, tmp_path, connect_s=LONG_S, file_s=LONG_S)
        assert node.run(["true"], timeout_s=LONG_S).out == "done\n"
        node.close()


def test_no_more_is_read_than_was_asked_for(cluster: LocalNodes, tmp_path: Path) -> None:
    with hostile_server(Hooks(sftp=hostile.sftp(hostile.more_than_asked))) as port:
        node = node_of(port, cluster, tmp_path, connect_s=LONG_S, file_s=LONG_S)
        assert node.read("/file", limit=100) == b"x" * 100
        node.close()


def test_a_thread_that_waits_for_the_file_channel_waits_no_longer_than_its_deadline(
    cluster: LocalNodes, tmp_path: Path
) -> None:
    with hostile_server(Hooks(sftp=hostile.sftp(hostile.drips_an_answer))) as port:
        node = node_of(port, cluster, tmp_path, connect_s=LONG_S, file_s=SHORT_S)
        node.open()
        ends: list[object] = []
        threads = [
            threading.Thread(target=lambda: ends.append(outcome(lambda: read(node, 0), MARGIN_S))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [getattr(end, "code", end) for end in ends] == ["timeout"] * 6
        node.close()


def test_a_jump_host_that_stalls_holds_up_no_call(cluster: LocalNodes, tmp_path: Path) -> None:
    """The jump host lies between us and a good node."""
    with hostile_server(Hooks(opens=hostile.stalls)) as port:
        node = node_of(port, cluster, tmp_path, connect_s=LONG_S, file_s=SHORT_S)
        jump = f"{getpass.getuser()}@127.0.0.1:{port}"
        behind = replace(cluster.hosts()[0], proxy_jump=jump)
        end = outcome(SshNode(behind, node._known_hosts, timeout_s=2.0).open, MARGIN_S)
        assert isinstance(end, NodeError)
        assert end.code == "unreachable"


@pytest.mark.parametrize("program", ["sleep 600", "cat", "exec yes", "true"])
def test_a_proxy_command_that_leads_nowhere_is_given_up_and_killed(program: str, tmp_path: Path) -> None:
    flag = tmp_path / "pid"
    sock = dial_by_program(f"sh -c 'echo $$ > {flag}; exec {program.removeprefix('exec ')}'")
    node = Target(node="gpu0", address="gpu0", port=22, user="me", identity_files=(), jump=None, command=program)
    link = Connection(transport=paramiko.Transport(sock), sock=sock, through=None)  # type: ignore[arg-type]
    with pytest.raises((TimeoutError, paramiko.SSHException, EOFError)):
        _negotiate(link.transport, node, KnownHosts(tmp_path / "known"), Deadline(SHORT_S))
    link.close()
    wait_for(lambda: not Path(f"/proc/{flag.read_text().strip()}").exists(), MARGIN_S)
