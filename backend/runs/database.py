"""The database of runs, as `app` uses it. `app` imports nothing of `backend/runs/store`."""

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backend.job.job import Job
from backend.job.problems import Problem
from backend.runs.records import Event, RunSnapshot
from backend.runs.states import EventKind, RunState
from backend.runs.store import (
    alert_rules,
    attempts,
    curve_axis,
    curve_levels,
    curve_view,
    logged_metrics,
    metric_table,
    metric_view,
    metrics,
    run_store,
    transitions,
    utilization,
)
from backend.runs.store.alert_rules import StoredRule
from backend.runs.store.curve_axis import Axis
from backend.runs.store.curve_buckets import Floats, Steps
from backend.runs.store.curve_view import END, LEAST_BUCKETS, Curves, State
from backend.runs.store.metric_view import Extremes, Metric
from backend.runs.store.metrics import FileKey
from backend.runs.store.node_replacement import job_on_nodes
from backend.runs.store.store import Store
from backend.runs.store.utilization import Measured, Stretch
from backend.runs.view import snapshot


class Reader:
    """Reads of one consistent state of the database. Methods that name a run raise ProblemsError(unknown_run)."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def snapshot(self, run: str, now: float) -> RunSnapshot:
        """Return everything about one run."""
        return snapshot.snapshot(self._connection, run, now)

    def job(self, run: str) -> Job:
        """Return the job of a run, with the spares that took the place of nodes."""
        return job_on_nodes(self._connection, run)

    def job_file(self, run: str) -> tuple[str, str]:
        """Return the name of a run and the job file that it was launched with."""
        row = run_store.run_row(self._connection, run)
        return row["name"], row["job"]

    def has_run(self, run: str) -> bool:
        """Return whether the run exists."""
        return run_store.state_of(self._connection, run) is not None

    def refuse_deleted(self, run: str) -> None:
        """Raise ProblemsError(run_deleted, run_archived) when the run was deleted."""
        run_store.refuse_deleted(self._connection, run)

    def names(self, name: str, limit: int) -> dict[str, str]:
        """Return id -> name of some runs: first those with this name, and the newest first among equals."""
        order = "SELECT id, name FROM runs ORDER BY name = ? DESC, created DESC, id DESC LIMIT ?"
        return {row["id"]: row["name"] for row in self._connection.execute(order, (name, limit))}

    def unfinished_runs(self) -> list[str]:
        """Return the ids of the runs that have not ended, oldest first."""
        return run_store.unfinished_runs(self._connection)

    def events_of(self, kinds: Collection[EventKind], *, after: int) -> list[Event]:
        """Return the events of all runs of some kinds after a cursor, in order."""
        return run_store.events_of(self._connection, kinds, after=after)

    def event_counts(self, run: str) -> dict[EventKind, int]:
        """Return the number of events of a run by kind."""
        return run_store.event_counts(self._connection, run)

    def messages_sent(self) -> int:
        """Return the `seq` of the newest event that the operator was notified of, as run_store.messages_sent."""
        return run_store.messages_sent(self._connection)

    def newest_attempt(self, run: str) -> int:
        """Return the number of the newest attempt; 0 before the first."""
        return attempts.newest(self._connection, run)

    def versions(self, run: str, attempt: int, rank: int) -> dict[str, str]:
        """Return the versions of a node's software at the start of an attempt; empty if they were not recorded."""
        return attempts.versions(self._connection, run, attempt, rank)

    def hostnames(self, run: str, attempt: int) -> dict[int, str]:
        """Return the nodes' own names by node rank; with a scheduler, only that of the login node, as 0."""
        return attempts.hostnames(self._connection, run, attempt)

    def log_files(self, run: str, attempt: int, rank: int) -> list[str]:
        """Return the names of the logs of a node with stored bytes."""
        return metrics.log_files(self._connection, run, attempt, rank)

    def log_end(self, key: FileKey) -> int:
        """Return the offset after the newest byte of a log; 0 where there is no log."""
        return metrics.log_end(self._connection, key)

    def log_tail(self, key: FileKey, *, size: int, before: int | None = None) -> tuple[int, bytes]:
        """Return (offset, bytes) of the newest `size` bytes of a log, or of those that end before an offset."""
        return metrics.log_tail(self._connection, key, size=size, before=before)

    def curve_state(self, run: str) -> State:
        """Return the state of the curves of a run."""
        return curve_view.state(self._connection, run)

    def curves(self, run: str, upto: State, first: int = 0, last: int = END, *, least: int = LEAST_BUCKETS) -> Curves:
        """Return the curves of a run from step `first` to step `last`, from at least `least` buckets."""
        return curve_view.view(self._connection, run, upto, first, last, least=least)

    def new_points(self, run: str, upto: State, seq: int, *, most: int) -> Curves | None:
        """Return the points after `seq`; None when there are more than `most`."""
        return curve_view.news(self._connection, run, upto, seq, most=most)

    def metrics(self, run: str) -> dict[str, Metric]:
        """Return every number that a run logs, by name. It reads no values."""
        return metric_view.metrics_of(self._connection, run)

    def metric_names(self) -> list[str]:
        """Return the names of all metrics that any run has logged."""
        return logged_metrics.names(self._connection)

    def metric_summaries(self, name: str) -> dict[str, tuple[float, float | None, float | None]]:
        """Return run -> (last, lowest, highest) value on the curve of a metric."""
        return metric_view.summaries(self._connection, name)

    def metric_values(
        self, metric: Metric, first: int = 0, last: int = END, *, least: int = LEAST_BUCKETS
    ) -> tuple[Steps, Floats]:
        """Return (steps, finite values) to draw of a metric: all, or extremes and ends of at least `least` buckets."""
        return metric_view.view(self._connection, metric, first, last, least=least)

    def metric_news(self, metric: Metric, after: int) -> tuple[Steps, Floats]:
        """Return (steps, finite values) of a metric after a step, for a reader with the same version."""
        return metric_view.news(self._connection, metric, after)

    def metric_extremes(self, metric: Metric) -> Extremes | None:
        """Return the lowest and the highest value of a metric; None without a finite value."""
        return metric_view.extremes(self._connection, metric)

    def axis(self, run: str) -> Axis:
        """Return time and tokens at some hundred steps of a run."""
        return curve_axis.axis(self._connection, run)

    def log_place(self, run: str, step: int) -> tuple[int, int] | None:
        """Return (attempt, offset in the log of rank 0) of a step on the curve; None if the node did not tell it."""
        return metrics.log_place(self._connection, run, step)

    def alert_rules(self, run: str) -> list[StoredRule]:
        """Return the rules of alerts that hold for a run."""
        return alert_rules.rules_of(self._connection, run)

    def metric_columns(self, run: str) -> list[str]:
        """Return the columns of the table of all numbers of a run."""
        return metric_table.columns(self._connection, run)

    def metric_rows(self, run: str, columns: Sequence[str]) -> Iterator[list[Any]]:
        """Return the rows of the table of all numbers of a run, one by one."""
        return metric_table.rows(self._connection, run, columns)

    def newest_utilization(self, run: str, rank: int) -> Stretch | None:
        """Return the newest stretch of utilization of a node."""
        return utilization.newest(self._connection, run, rank)

    def utilization(
        self, run: str, rank: int, measure: str, *, width: int, since: int = 0
    ) -> list[tuple[int, Measured]]:
        """Return (start, values) of each stretch of one measure of a node."""
        return utilization.measured(self._connection, run, rank, measure, width=width, since=since)


class Database:
    """One open database. Safe for many threads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        """For the constructors of Controller, Retention and Draft."""

    @classmethod
    def open(cls, path: Path) -> "Database":
        """Open the file, and create it when it is missing. Raises StoreError."""
        return cls(Store(path))

    @property
    def path(self) -> Path:
        """Return the database file."""
        return self.store.path

    @property
    def trouble(self) -> Problem | None:
        """Return why the newest write failed; None once a write has succeeded."""
        return self.store.trouble

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """Read one consistent state. Raises StoreError."""
        with self.store.read() as connection:
            yield Reader(connection)

    def job(self, run: str) -> Job:
        """Return the job of a run, with the spares that took the place of nodes."""
        with self.read() as reader:
            return reader.job(run)

    def process_points(self, run: str) -> bool:
        """Add some points that an older version stored to the curves; return whether more are left."""
        return self.store.write(lambda connection: curve_levels.add_points(connection, run))

    def add_alert_rule(self, run: str | None, values: Mapping[str, Any], *, now: float) -> None:
        """Add a rule for a run, or for all. ProblemsError(bad_rule, too_many_rules)."""
        rule = alert_rules.rule_of(values)
        self.store.write(lambda connection: alert_rules.add(connection, run, rule, now))

    def remove_alert_rule(self, rule: int) -> None:
        """Remove a rule of alerts."""
        self.store.write(lambda connection: alert_rules.remove(connection, rule))

    def begin_messages(self) -> None:
        """Notify the operator only of events from now on, unless a notification was sent before."""
        self.store.write(run_store.begin_messages)

    def set_messages_sent(self, event: int) -> None:
        """Record that the operator was notified of the events up to this one."""
        self.store.write(lambda connection: run_store.set_messages_sent(connection, event))

    def record_failed_message(self, run: str, detail: Mapping[str, Any], *, time: float) -> None:
        """Record that a notification about a run could not be sent."""
        kind = EventKind.MESSAGE_FAILED
        self.store.write(lambda connection: run_store.append(connection, run, kind, time=time, detail=detail))

    def request_stops(self, now: float) -> None:
        """Record for every started and unfinished run that it must stop."""

        def stop(connection: sqlite3.Connection) -> None:
            for run in run_store.unfinished_runs(connection):
                if run_store.state_of(connection, run) is not RunState.QUEUED:
                    transitions.end(connection, run, save=False, now=now)

        self.store.write(stop)

    def close(self) -> None:
        """Finish the writes in progress and close the file."""
        self.store.close()
