import sqlite3

import pytest

from backend.job.problems import Problem, ProblemsError
from backend.runs.records import problem_from_json, problem_to_json
from backend.runs.states import EventKind, RunState
from backend.runs.store import run_store
from backend.runs.view.snapshot import snapshot, summaries
from tests.runs.conftest import RUN, Gang


def _states(gang: Gang) -> list[str]:
    return [node.state for node in gang.snapshot().nodes]


def test_a_run_shows_its_steps_nodes_and_heartbeats(gang: Gang) -> None:
    gang.write(0, "steps.rank0.jsonl", *[{"step": n, "time": n, "step_s": 2.0, "total_steps": 10} for n in (1, 2, 3)])
    gang.write(
        1,
        "heartbeat.jsonl",
        {"time": 1, "members": [[7, 8], [9, 10]], "gpus": [{"index": 0, "utilization": 90}], "load1": 1.5},
    )
    gang.collector(0).poll(gang.nodes[0])
    gang.collector(1).poll(gang.nodes[1])
    gang.clock.now += 4.0
    shown = gang.snapshot()
    assert (shown.state, shown.step, shown.total_steps, shown.eta_s) == (RunState.RUNNING, 3, 10, 14.0)
    with gang.store.read() as connection:
        (line,) = summaries(connection, {}, gang.clock.now)
    assert (line.step, line.total_steps, line.eta_s) == (3, 10, 14.0)
    assert (shown.nodes[0].heartbeat_age_s, shown.nodes[1].heartbeat_age_s) == (None, 4.0)
    assert (shown.nodes[1].members, shown.nodes[1].host) == (2, {"load1": 1.5})
    assert shown.nodes[1].gpus == ({"index": 0, "utilization": 90},)
    assert [event.kind for event in shown.events][-1] is EventKind.STARTED


def test_node_states_follow_their_events(gang: Gang) -> None:
    assert _states(gang) == ["pending"] * 3
    gang.add_event(EventKind.NODE_STARTING, 0)
    gang.add_event(EventKind.NODE_STARTING, 1)
    gang.add_event(EventKind.NODE_STARTED, 1)
    assert _states(gang) == ["starting", "running", "pending"]
    gang.add_event(EventKind.NODE_UNREACHABLE, 1)
    assert _states(gang)[1] == "unreachable"
    gang.add_event(EventKind.NODE_REACHABLE, 1)
    assert _states(gang)[1] == "running"


def test_node_states_follow_their_ends(gang: Gang) -> None:
    gang.exit(0, 0)
    gang.exit(1, 1)
    gang.pass_time(gang.monitor(), 1)
    assert _states(gang) == ["finished", "failed", "stopping"]
    gang.pass_time(gang.monitor(), 10)
    assert _states(gang) == ["finished", "failed", "stopped"]


def test_why_a_run_failed_is_reported_until_somebody_resumes_it(gang: Gang) -> None:
    gang.exit(1, 1)
    assert gang.pass_time(gang.monitor(), 30)
    assert gang.snapshot().cause is not None
    gang.add_event(EventKind.RESUMED)
    assert gang.snapshot().cause is None


def test_a_node_that_was_never_heard_of_again_is_lost(gang: Gang) -> None:
    gang.break_link(2)
    gang.add_event(EventKind.STOP_REQUESTED, save=False)
    gang.pass_time(gang.monitor(), 300)
    assert _states(gang) == ["stopped", "stopped", "lost"]


def test_time_left_is_shown_only_while_it_runs(gang: Gang) -> None:
    gang.write(0, "steps.rank0.jsonl", {"step": 1, "time": 1, "step_s": 2.0, "total_steps": 10})
    gang.collector(0).poll(gang.nodes[0])
    assert gang.snapshot().eta_s == 18.0
    gang.add_event(EventKind.STOP_REQUESTED)
    assert gang.snapshot().eta_s is None


def test_the_list_of_runs_shows_where_each_stands(gang: Gang) -> None:
    with gang.store.read() as connection:
        (line,) = summaries(connection, {}, 0.0)
    assert (line.id, line.name, line.state, line.nodes, line.step, line.ended) == (
        RUN,
        "job",
        RunState.RUNNING,
        3,
        None,
        None,
    )


def test_the_list_of_runs_says_why_one_failed_and_what_one_waits_for(gang: Gang) -> None:
    with gang.store.read() as connection:
        (line,) = summaries(connection, {RUN: Problem(code="waits_behind")}, 0.0)
    assert (line.queue_place, line.why and line.why.code, line.has_begun) == (1, "waits_behind", True)
    gang.add_event(EventKind.FAILING)
    cause = problem_to_json(Problem(code="gpus_busy", node="10.0.0.2"))
    gang.add_event(EventKind.FAILED, problem=cause)
    with gang.store.read() as connection:
        (line,) = summaries(connection, {}, 0.0)
    assert line.why is not None
    assert (line.state, line.why.code, line.why.node) == (RunState.FAILED, "gpus_busy", "10.0.0.2")


@pytest.mark.parametrize(("kind", "detail"), [("of a newer version", "{}"), ("created", "no json"), ("failed", "[]")])
def test_a_run_that_cannot_be_read_says_so_and_hides_no_other(gang: Gang, kind: str, detail: str) -> None:
    def another(connection: sqlite3.Connection) -> None:
        row = run_store.run_row(connection, RUN)
        names = {"name": "other", "engine": row["engine"], "job": row["job"]}
        run_store.create_run(connection, "other", **names, addresses=[], time=row["created"] - 1)
        columns = "(run, attempt, rank, kind, time, detail)"
        connection.execute(f"INSERT INTO events {columns} VALUES (?, 1, 0, ?, 0, ?)", (RUN, kind, detail))

    gang.store.write(another)
    with gang.store.read() as connection:
        lines = summaries(connection, {}, 0.0)
        with pytest.raises(ProblemsError) as caught:
            snapshot(connection, RUN, 0.0)
    assert {line.id: line.state for line in lines} == {RUN: RunState.BROKEN, "other": RunState.QUEUED}
    assert lines[0].why == caught.value.problems[0]
    assert lines[0].why.code == "run_unreadable"


def test_an_unknown_run_is_a_problem_of_the_user(gang: Gang) -> None:
    with gang.store.read() as connection, pytest.raises(ProblemsError):
        snapshot(connection, "nope", 0.0)


def test_a_problem_survives_the_store() -> None:
    problem = Problem(code="c", field="f", node="n", values={"a": 1, "b": ["x"]}, edit={"p": 2})
    assert problem_from_json(problem_to_json(problem) | {"added_later": 1}) == problem
