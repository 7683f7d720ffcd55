"""Last and best value of a metric in the list of runs."""

import pytest

from app.monitor.metric_columns import MetricColumns
from backend.runs.database import Database
from backend.runs.states import EventKind
from backend.runs.store import logged_metrics, metrics
from backend.runs.store.store import Store
from backend.runs.view import snapshot
from tools.stored_runs import StoredRun

RUN = "20260101-000000-a-aaaa"


@pytest.mark.parametrize(("name", "best"), [("loss", 2.0), ("eval_loss", 3.0), ("mine/accuracy", 0.5)])
def test_the_best_value_is_none_of_the_steps_that_were_trained_again(tmp_path, name, best):
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=1000.0)
    run.start()
    log(store, 1, {10: (2.0, 3.0, 0.5), 20: (0.1, 0.2, 0.9)})
    run.add_event(EventKind.STOP_REQUESTED)
    run.add_event(EventKind.STOPPED)
    columns = MetricColumns(Database(store))
    assert values(store, columns, name).best != best
    run.add_event(EventKind.RESUMED)
    run.attempt += 1
    run.begin(10)
    run.start()
    log(store, 2, {20: (4.0, 5.0, 0.3)})
    assert values(store, columns, name).best == best
    run.now += 60
    run.add_event(EventKind.FINISHED)
    assert values(store, columns, name).best == best
    store.close()


def values(store, columns, name):
    with store.read() as connection:
        runs = snapshot.summaries(connection, {}, 2000.0)
    return columns.values(runs, name)[RUN]


def log(store, attempt, by_step):
    rows = [
        {"step": step, "time": 1000.0 + step, "loss": loss, "metrics": {"eval_loss": other, "mine/accuracy": share}}
        for step, (loss, other, share) in by_step.items()
    ]

    def add(connection):
        metrics.add_points(connection, RUN, attempt, 0, rows)
        logged_metrics.add(connection, RUN, attempt, 0, rows)

    store.write(add)
