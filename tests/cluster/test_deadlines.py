"""A call ends by its deadline, whatever it waits for."""

import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.cluster import deadlines
from backend.cluster.deadlines import Deadline, ended_at
from backend.cluster.node import NodeError
from backend.cluster.ssh.config import Target
from backend.cluster.ssh.connect_errors import explain
from backend.cluster.ssh.connection import open_connection
from backend.cluster.ssh.dialling import dial_address
from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.cluster import Host
from tests.threads import without_threads
from tests.waiting import WITHIN_S, wait_for


def wait_until_closed(closed: threading.Event) -> None:
    """Wait as paramiko does: without a limit, and with an error after the channel is closed."""
    assert closed.wait(WITHIN_S)
    raise EOFError


def test_what_waits_beyond_the_deadline_is_ended_and_is_a_timeout() -> None:
    closed = threading.Event()
    with pytest.raises(TimeoutError), ended_at(Deadline(0.05), closed.set):
        wait_until_closed(closed)


def test_an_error_before_the_deadline_stays_what_it_is() -> None:
    with pytest.raises(EOFError), ended_at(Deadline(WITHIN_S), lambda: None):
        raise EOFError


def test_what_is_done_in_time_is_not_ended() -> None:
    ends: list[str] = []
    done, after = Deadline(0.05), threading.Event()
    with ended_at(done, lambda: ends.append("the first")):
        pass
    with pytest.raises(TimeoutError), ended_at(done, after.set, later_s=0.05):
        wait_until_closed(after)
    assert ends == []


def test_an_end_that_waits_itself_holds_up_no_other_deadline() -> None:
    over, closed = threading.Event(), threading.Event()
    deadline = Deadline(0.05)
    with pytest.raises(TimeoutError), ended_at(deadline, over.wait), ended_at(deadline, closed.set, later_s=0.01):
        wait_until_closed(closed)
    over.set()


def test_an_end_that_fails_ends_the_call_all_the_same() -> None:
    closed = threading.Event()

    def close() -> None:
        closed.set()
        raise OSError("the connection was lost")

    with pytest.raises(TimeoutError), ended_at(Deadline(0.05), close):
        wait_until_closed(closed)


def test_deadlines_in_any_order_are_all_kept() -> None:
    def work(timeout_s: float) -> None:
        closed = threading.Event()
        try:
            with ended_at(Deadline(timeout_s), closed.set):
                wait_until_closed(closed)
        except TimeoutError:
            ended.append(timeout_s)

    ended: list[float] = []
    threads = [threading.Thread(target=work, args=(0.2 - 0.005 * number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert len(ended) == 32


def test_a_deadline_that_finds_no_thread_is_kept_once_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    closed, after = threading.Event(), threading.Event()

    def work() -> None:
        with without_threads():
            wait_for(lambda: "cannot be ended yet" in caplog.text)
        wait_until_closed(closed)

    with pytest.raises(TimeoutError), ended_at(Deadline(0.05), closed.set):
        work()
    with pytest.raises(TimeoutError), ended_at(Deadline(0.05), after.set):
        wait_until_closed(after)


def test_a_call_for_which_no_thread_can_watch_is_a_lack_of_resources_and_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadlines, "_watchdog", deadlines._Watchdog())
    done: list[str] = []
    begun = ended_at(Deadline(0.05), lambda: done.append("ended"))
    with without_threads(), pytest.raises(BlockingIOError) as caught, begun:
        done.append("begun")
    assert caught.value.errno == errno.EAGAIN
    closed = threading.Event()
    with pytest.raises(TimeoutError), ended_at(Deadline(0.1), closed.set):
        wait_until_closed(closed)
    assert done == []


@pytest.fixture
def silent_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    over = threading.Event()

    def look_up(*arguments: object, **options: object) -> list[object]:
        over.wait(WITHIN_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield
    over.set()


def test_a_resolver_that_does_not_answer_holds_up_no_call(silent_resolver: None) -> None:
    with pytest.raises(socket.gaierror, match="look-up of gpu7") as caught:
        dial_address("gpu7", 22, Deadline(0.05))
    target = Target(node="gpu7", address="gpu7", port=22, user="u", identity_files=(), jump=None)
    error = explain(caught.value, target)
    assert (error.code, error.is_local) == ("address_unknown", True)


def test_a_resolver_that_does_not_answer_holds_up_no_canonical_name(silent_resolver: None, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("CanonicalizeHostname yes\nCanonicalDomains a.example b.example\n")
    with pytest.raises(NodeError) as caught:
        open_connection(Host(address="gpu7"), KnownHosts(tmp_path / "known"), timeout_s=0.05, ssh_folder=tmp_path)
    assert (caught.value.code, caught.value.is_local) == ("address_unknown", True)
