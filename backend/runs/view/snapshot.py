"""Data of a run that the page shows, read only from the store. A read is cheap enough for every tick of every tab."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace

from backend.job.problems import Problem, ProblemsError
from backend.runs.collect.node_records import Beat
from backend.runs.collect.poller import newest_report
from backend.runs.diagnosis.hang import find_hang, patience_s
from backend.runs.diagnosis.straggler import find_straggler
from backend.runs.records import (
    Event,
    NodeRecord,
    NodeSnapshot,
    Point,
    RunLabels,
    RunSnapshot,
    RunSummary,
    problem_from_json,
)
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, derived_runs, metrics, run_labels, run_store
from backend.runs.store.run_store import run_job
from backend.runs.view.elapsed import elapsed
from backend.runs.view.history import restarts_used
from backend.runs.view.preparation_progress import preparing
from backend.runs.view.progress import RECENT_STEPS, progress

EVENTS_SHOWN = 400
"""An attempt of 32 nodes has some 170 events."""


def snapshot(connection: sqlite3.Connection, run: str, now: float) -> RunSnapshot:
    """Return everything about one run. Raises ProblemsError(unknown_run)."""
    row = run_store.run_row(connection, run)
    attempt = attempts.newest(connection, run)
    history = run_store.events(connection, run)
    state = run_store.state_of(connection, run) or RunState.QUEUED
    job = run_job(row["job"])
    trail = metrics.trail(connection, run, attempt, count=RECENT_STEPS)
    rank_0 = progress(job, trail)
    last = _by_our_clock(connection, run, trail[-1]) if trail else None
    nodes = _nodes(connection, run, attempt, state, history, now)
    queue_place, not_before = _queue_place(connection, run)
    hang = slow = None
    if state is RunState.RUNNING and row["engine"] not in derived_runs.KINDS:
        step_s = rank_0.step_s
        hang = find_hang(
            connection, run, attempt, job=job, last=last, step_s=step_s, nodes=nodes, history=history, now=now
        )
        slow = find_straggler(connection, run, attempt, nodes=nodes, now=now) if hang is None else None
    return RunSnapshot(
        id=run,
        name=row["name"],
        state=state,
        created=row["created"],
        ended=row["ended"],
        engine=row["engine"],
        attempt=attempt,
        step=rank_0.step,
        total_steps=rank_0.total_steps,
        eta_s=rank_0.eta_s if state in (RunState.RUNNING, RunState.WATCHED) else None,
        step_s=rank_0.step_s,
        tokens_per_s=rank_0.tokens_per_s,
        loss=metrics.newest_loss(connection, run),
        preparing=preparing(connection, run, attempt) if _waits_for_data(connection, row, attempt, state) else None,
        cause=run_store.cause_of(connection, run),
        warnings=_warnings(history, state),
        nodes=nodes,
        unseen=_unseen(history, attempt, nodes, now) if not state.is_final else (),
        events=tuple(history[-EVENTS_SHOWN:]),
        started=next((event.time for event in history if event.kind is EventKind.STARTING), None),
        elapsed=elapsed(connection, run, history),
        last_step_at=last.time if last and last.attempt == attempt else None,
        standstill=hang,
        slowdown=slow,
        checkpoint_step=attempts.checkpoint_step(connection, run, attempt),
        source=_source(connection, run),
        restarts=restarts_used(history),
        restarts_allowed=row["restarts"],
        queue_place=queue_place,
        not_before=not_before,
        scheduler=scheduler_word(history, attempt),
        labels=run_labels.read(connection, run),
        looked_at=now,
    )


def scheduler_word(history: Sequence[Event], attempt: int) -> Mapping[str, object] | None:
    """Return the newest word of a scheduler on the job of an attempt; None without one."""
    kinds = (EventKind.SCHEDULER, EventKind.SUBMITTED)
    newest = next((event for event in reversed(history) if event.kind in kinds and event.attempt == attempt), None)
    return None if newest is None else {"state": "PENDING", **newest.detail}


def _scheduler_waits(connection: sqlite3.Connection, run: str, attempt: int) -> Problem | None:
    """Return what a run waits for in a scheduler's queue."""
    word = scheduler_word(run_store.events(connection, run), attempt)
    if word is None or word["state"] != "PENDING":
        return None
    values = {"job": word["job"], "reason": word.get("reason") or "PENDING"}
    return Problem(code="slurm_waits", severity="note", values=values)


def summaries(connection: sqlite3.Connection, waits: Mapping[str, Problem | None], now: float) -> list[RunSummary]:
    """Return all runs, newest first; `waits`: queue_order.why_waiting. An unreadable run is BROKEN, with the reason."""
    rows = connection.execute(
        "SELECT r.*, (SELECT count(*) FROM nodes n WHERE n.run = r.id AND n.attempt = 1) AS nodes FROM runs r"
        " ORDER BY created DESC, id DESC"
    ).fetchall()
    queue_places = {run: position for position, run in enumerate(waits, 1)}
    labels = run_labels.read_all(connection)
    runs = []
    for row in rows:
        try:
            summary = _summary(connection, row, queue_places.get(row["id"]), waits.get(row["id"]), now)
        except ProblemsError as error:
            summary = _broken(row, error.problems[0])
        runs.append(replace(summary, labels=labels.get(row["id"], RunLabels())))
    return runs


def _broken(row: sqlite3.Row, why: Problem) -> RunSummary:
    """Return a summary from the row of the run only."""
    columns = {key: row[key] for key in ("id", "name", "created", "ended", "engine", "nodes")}
    return RunSummary(**columns, state=RunState.BROKEN, why=why)


def _by_our_clock(connection: sqlite3.Connection, run: str, point: Point) -> Point:
    records = attempts.nodes(connection, run, point.attempt)
    return replace(point, time=point.time - records[0].clock_offset_s) if records else point


def _warnings(history: Sequence[Event], state: RunState) -> tuple[Problem, ...]:
    failing = next((event for event in reversed(history) if event.kind is EventKind.FAILING), None)
    if state is not RunState.FAILED or failing is None:
        return ()
    return tuple(problem_from_json(warning) for warning in failing.detail.get("warnings") or ())


def _source(connection: sqlite3.Connection, run: str) -> tuple[str, int] | None:
    source = run_store.source_of(connection, run)
    return (source["run"], source["step"]) if source else None


def _queue_place(connection: sqlite3.Connection, run: str) -> tuple[int | None, float | None]:
    """Return the place of a run in the queue and its earliest start, where it has them."""
    rows = connection.execute("SELECT run, not_before FROM queue ORDER BY position")
    places = {row["run"]: (place, row["not_before"] or None) for place, row in enumerate(rows, 1)}
    return places.get(run, (None, None))


def _waits_for_data(connection: sqlite3.Connection, row: sqlite3.Row, attempt: int, state: RunState) -> bool:
    if state is not RunState.RUNNING or row["engine"] in derived_runs.KINDS or not run_job(row["job"]).prepares_data:
        return False
    return not metrics.newest_points(connection, row["id"], attempt, count=1)


def node_state(record: NodeRecord, state: RunState, history: Sequence[Event]) -> str:
    """Return the state of one node, from its exit or the newest event that names it."""
    if record.stop["left"] if record.stop is not None else (record.exit or {}).get("left"):
        return "lost" if state.is_final else "stopping"
    if record.exit is not None:
        if record.exit.get("stopped"):
            return "stopped"
        return "finished" if record.exit.get("code") == 0 else "failed"
    if record.stop is not None:
        return "stopped"
    newest = next((event.kind for event in reversed(history) if event.rank == record.rank), None)
    if newest is EventKind.NODE_UNSEEN and not state.is_final:
        return "unseen"
    if newest is EventKind.NODE_UNREACHABLE or newest is EventKind.LOSING:
        return "lost" if state.is_final and state is not RunState.UNWATCHED else "unreachable"
    if state in (RunState.WATCHED, RunState.UNWATCHED):
        return state.value
    if state.is_final:
        return "lost"
    if state is RunState.STOPPING:
        return "stopping"
    started = any(event.kind is EventKind.NODE_STARTED and event.rank == record.rank for event in history)
    return "running" if started else "starting" if newest is EventKind.NODE_STARTING else "pending"


def _nodes(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    state: RunState,
    history: Sequence[Event],
    now: float,
) -> tuple[NodeSnapshot, ...]:
    beats = metrics.newest_heartbeats(connection, run, attempt)
    of_attempt = [event for event in history if event.attempt == attempt and not _is_outdated(event, beats)]
    return tuple(
        _node(record, node_state(record, state, of_attempt), beats.get(record.rank), now)
        for record in attempts.nodes(connection, run, attempt)
    )


def _is_outdated(event: Event, beats: Mapping[int, tuple[float, Beat]]) -> bool:
    """Return whether a heartbeat is newer than the report of an unreadable node: another process reads the node."""
    beat_at, _ = beats.get(-1 if event.rank is None else event.rank, (event.time, Beat()))
    return event.kind in (EventKind.NODE_UNSEEN, EventKind.NODE_UNREACHABLE) and beat_at > event.time


def _unseen(history: Sequence[Event], attempt: int, nodes: Sequence[NodeSnapshot], now: float) -> tuple[Problem, ...]:
    """Return why the server cannot read nodes, in rank order."""
    problems = []
    for node in nodes:
        newest = newest_report(history, attempt, node.rank)
        if newest is None or newest.kind is not EventKind.NODE_UNSEEN or node.exit is not None:
            continue
        beat_at = None if node.heartbeat_age_s is None else now - node.heartbeat_age_s
        if beat_at is None or beat_at <= newest.time:
            problems.append(problem_from_json(newest.detail["problem"]))
    return tuple(problems)


def _node(record: NodeRecord, state: str, beat: tuple[float, Beat] | None, now: float) -> NodeSnapshot:
    received, values = beat if beat is not None else (None, Beat())
    has_ended = record.exit is not None or state in ("stopped", "lost")
    return NodeSnapshot(
        rank=record.rank,
        address=record.address,
        state=state,
        heartbeat_age_s=None if received is None else max(0.0, now - received),
        gpus=tuple(values.get("gpus", ())),
        host={key: value for key, value in values.items() if key in _HOST_KEYS},
        members=0 if has_ended else values.get("members", 0),
        stuck=tuple((record.exit or {}).get("stuck", ()) if has_ended else values.get("stuck", ())),
        wrote=values["wrote"] - record.clock_offset_s if "wrote" in values else None,
        worked=tuple((rank, when - record.clock_offset_s) for rank, when in values.get("worked", ())),
        exit=record.exit,
        stop=record.stop,
    )


_HOST_KEYS = ("load1", "memory_used_mib", "memory_total_mib", "disk_free_mib")


def _summary(
    connection: sqlite3.Connection, row: sqlite3.Row, queue_place: int | None, waits_for: Problem | None, now: float
) -> RunSummary:
    attempt = attempts.newest(connection, row["id"])
    state = run_store.state_of(connection, row["id"]) or RunState.QUEUED
    failed, is_active = state in (RunState.FAILED, RunState.LOST), state in (RunState.RUNNING, RunState.WATCHED)
    trail = metrics.trail(connection, row["id"], attempt, count=RECENT_STEPS if is_active else 1)
    newest = trail[-1] if trail else None
    newest_of_attempt = newest if newest and newest.attempt == attempt else None
    return RunSummary(
        id=row["id"],
        name=row["name"],
        state=state,
        created=row["created"],
        ended=row["ended"],
        engine=row["engine"],
        nodes=row["nodes"] or len(run_job(row["job"]).cluster.connected_hosts),
        step=newest.step if newest else None,
        total_steps=newest.total_steps if newest else None,
        loss=metrics.newest_loss(connection, row["id"]),
        eta_s=progress(run_job(row["job"]), trail).eta_s if is_active else None,
        stands_since=_stands_since(connection, row["id"], newest_of_attempt, now)
        if state is RunState.RUNNING and row["engine"] not in derived_runs.KINDS
        else None,
        queue_place=queue_place,
        has_begun=attempt > 0,
        why=run_store.cause_of(connection, row["id"])
        if failed
        else _scheduler_waits(connection, row["id"], attempt)
        if state is RunState.STARTING
        else waits_for,
    )


def _stands_since(connection: sqlite3.Connection, run: str, newest: Point | None, now: float) -> float | None:
    """Return since when the run makes no progress. All nodes are read only if the newest step is old, or missing."""
    if newest and now - _by_our_clock(connection, run, newest).time < patience_s(newest.step_s):
        return None
    hang = snapshot(connection, run, now).standstill
    return hang.since if hang else None
