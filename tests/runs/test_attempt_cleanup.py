"""Between two attempts no process is left, nothing is unread, and each step counts once."""

import math

import pytest

from backend.cluster.node_group import GroupError
from backend.job.job import Job
from backend.job.mapping import load_job
from backend.runs.states import EventKind
from backend.runs.store import attempts, metrics, run_store
from backend.runs.supervise.attempt_cleanup import clean_up
from tests.runs.conftest import RUN, Gang


@pytest.fixture
def job(gang: Gang) -> Job:
    with gang.store.read() as connection:
        parsed, _ = load_job(run_store.run_row(connection, RUN)["job"])
    assert parsed is not None
    return parsed


def _settle(gang: Gang, job: Job) -> None:
    clean_up(gang.store, RUN, 1, job, dict(enumerate(gang.nodes)), grace_s=1.0, clock=gang.clock)


def test_what_a_lost_node_wrote_meanwhile_is_read_and_it_is_stopped(gang: Gang, job: Job) -> None:
    gang.write(0, "steps.rank0.jsonl", *({"step": step, "time": 1.0} for step in (1, 2)))
    gang.collector(0).poll(gang.nodes[0])
    gang.write(0, "steps.rank0.jsonl", *({"step": step, "time": 1.0} for step in (3, 4)))
    gang.nodes[0].files["/r/node0/rank0.log"] = b"last words\n"
    _settle(gang, job)
    assert [point.step for point in gang.points()] == [1, 2, 3, 4]
    with gang.store.read() as connection:
        records = attempts.nodes(connection, RUN, 1)
        assert metrics.log_files(connection, RUN, 1, 0) == ["rank0.log"]
    assert [record.stop for record in records] == [{"left": []}] * 3
    before = [len(node.ran) for node in gang.nodes]
    _settle(gang, job)
    assert [len(node.ran) for node in gang.nodes] == before, "what is proved is not asked for again"


def test_a_process_that_nothing_ends_keeps_the_next_attempt_from_starting(gang: Gang, job: Job) -> None:
    gang.on_stop(1, left=[[7, "python", "D"]])
    with pytest.raises(GroupError) as caught:
        _settle(gang, job)
    assert [(problem.code, problem.node) for problem in caught.value.problems] == [("processes_left", "10.0.0.2")]


def test_a_node_that_does_not_answer_keeps_it_too(gang: Gang, job: Job) -> None:
    gang.break_link(2)
    with pytest.raises(GroupError) as caught:
        _settle(gang, job)
    assert [(problem.code, problem.node) for problem in caught.value.problems] == [("unreachable", "10.0.0.3")]


def _attempt(gang: Gang, number: int, checkpoint: int | None, *steps: int) -> None:
    def write(connection) -> None:  # type: ignore[no-untyped-def]
        if number > 1:
            attempts.create(
                connection,
                RUN,
                number,
                master=("a", 1),
                rendered={},
                nodes=gang.records,
                time=1.0,
                checkpoint_step=checkpoint,
            )
        metrics.add_points(connection, RUN, number, 0, [{"step": step, "time": 1.0} for step in steps])

    gang.store.write(write)


def _trail(gang: Gang, count: int = 100) -> list[tuple[int, int]]:
    with gang.store.read() as connection:
        points = metrics.trail(connection, RUN, attempts.newest(connection, RUN), count=count)
    return [(point.attempt, point.step) for point in points]


def test_an_attempt_replaces_the_steps_behind_its_checkpoint_at_once(gang: Gang) -> None:
    _attempt(gang, 1, None, *range(1, 9))
    assert _trail(gang) == [(1, step) for step in range(1, 9)]
    _attempt(gang, 2, 6)
    assert _trail(gang) == [(1, step) for step in range(1, 7)], "the progress falls back to the checkpoint"
    _attempt(gang, 3, 6, 7, 8, 9)
    assert _trail(gang) == [(1, step) for step in range(1, 7)] + [(3, step) for step in (7, 8, 9)]
    assert _trail(gang, 4) == [(1, 6), (3, 7), (3, 8), (3, 9)]
    _attempt(gang, 4, 2, 3)
    assert _trail(gang) == [(1, 1), (1, 2), (4, 3)], "a resume from an earlier checkpoint goes back behind the others"
    _attempt(gang, 5, None, 1)
    assert _trail(gang) == [(5, 1)], "from the beginning"


def test_a_loss_that_is_no_number_survives_the_trail(gang: Gang) -> None:
    gang.store.write(lambda c: metrics.add_points(c, RUN, 1, 0, [{"step": 1, "time": 1.0, "loss": math.nan}]))
    with gang.store.read() as connection:
        (point,) = metrics.trail(connection, RUN, 1, count=5)
    assert point.loss is not None
    assert math.isnan(point.loss)
    assert not gang.add_event(EventKind.RESUMED), "a running run cannot be resumed"
