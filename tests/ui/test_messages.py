"""A real server sends notifications of runs to a real address, and a killed server continues after its restart."""

import time
from pathlib import Path

import pytest

from backend.runs.states import EventKind
from backend.runs.store import run_store
from backend.runs.store.store import Store
from tests.inbox import TOKEN, Inbox
from tests.waiting import wait_for
from tools.browser import Server
from tools.stored_runs import StoredRun

pytestmark = pytest.mark.ui


def test_a_killed_server_tells_after_its_restart_what_happened_meanwhile(tmp_path: Path) -> None:
    store, inbox = Store(tmp_path / "megaboard.db"), Inbox()
    runs = [
        StoredRun(
            store, f"20260101-000000-mine-aaa{i}", now=time.time(), name=f"mine-{i}", addresses=[f"127.0.0.1:{i}"]
        )
        for i in (1, 2)
    ]
    addresses = tmp_path / "addresses"
    addresses.write_text(inbox.address)
    addresses.chmod(0o600)
    server = Server(tmp_path, MEGABOARD_NOTIFY_FILE=str(addresses), LANG="zh_CN.UTF-8", LC_ALL="zh_CN.UTF-8")
    server.start()
    try:
        for run in runs:
            run.add_event(EventKind.FAILING)
        runs[0].add_event(EventKind.FAILED)
        # A server that is killed before it noted what it sent tells it again.
        with store.read() as connection:
            events = run_store.events_of(connection, [EventKind.FAILED], after=0)[-1].seq
        wait_for(lambda: _noted(store) == events)
        assert inbox.titles == ["失败：mine-1"]
        server.kill()
        runs[1].add_event(EventKind.FAILED)
        server.start()
        wait_for(lambda: inbox.titles == ["失败：mine-1", "失败：mine-2"])
    finally:
        server.kill()
        store.close()
        inbox.close()
    log = (tmp_path / "server.log").read_text()
    assert "JSON" in log
    assert TOKEN not in log


def _noted(store: Store) -> int | None:
    with store.read() as connection:
        return run_store.messages_sent(connection)
