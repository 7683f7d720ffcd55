"""The demo's end is the end that its user asked for, of every run on its nodes."""

from app.cli_demo import stop_runs
from app.home import store_path
from backend.jobs import ledger
from backend.jobs.states import EventKind, RunState
from backend.jobs.store import Store
from tools.stored_runs import StoredRun

NOW = 1_800_000_000.0


def test_runs_that_the_demo_ends_were_stopped_and_those_that_wait_go_on_waiting(tmp_path):
    store = Store(store_path(tmp_path))
    trains, stops, waits, over = (
        StoredRun(store, f"20260101-00000{number}-run-aaaa", now=NOW, attempted=number != 2) for number in range(4)
    )
    for run in (trains, stops, over):
        run.start()
    stops.tell(EventKind.STOP_REQUESTED, save=True)
    over.tell(EventKind.FINISHED)
    store.close()
    stop_runs(tmp_path, NOW + 9)
    stop_runs(tmp_path, NOW + 10)
    store = Store(store_path(tmp_path))
    with store.read() as connection:
        states = [ledger.state_of(connection, run.id) for run in (trains, stops, waits, over)]
        kinds = [event.kind for event in ledger.events(connection, trains.id)]
    store.close()
    assert states == [RunState.STOPPING, RunState.STOPPING, RunState.QUEUED, RunState.FINISHED]
    assert kinds.count(EventKind.STOP_REQUESTED) == 1
