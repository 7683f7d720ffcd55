"""Spares take the rank of a node that failed; the node is kept out until it is cleared."""

import pytest

from app.text import LANGUAGES, render_problem
from backend.cluster.preflight.results import Checks
from backend.job.cluster import Login, Scheduler
from backend.job.job import Job
from backend.job.launch_rules import check_nodes, own_field, with_spares
from backend.job.mapping import dump_job, parse_job, with_values
from backend.job.problems import Problem
from backend.runs.launch.preflight import check_cordons, of_spare
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, node_replacement, queue_order, run_store
from backend.runs.store.store import Store
from backend.runs.supervise import restart

RUN = "20260101-000000-job-aaaa"
HOSTS = ("10.0.0.1", "10.0.0.2")
SPARES = ("10.0.0.8", "10.0.0.9")
LOST = Problem(code="node_lost", node=HOSTS[1], values={"node": HOSTS[1], "seconds": 31})


def job_with(spares: tuple[str, ...] = SPARES) -> Job:
    cluster = {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8,
               "hosts": [{"address": address} for address in HOSTS],
               "spares": [{"address": address} for address in spares],
               "environments": {"llamafactory": {"python": "/lf/bin/python"}}}  # fmt: skip
    job, problems = parse_job({"cluster": cluster, "model": {"preset": "qwen3-8b"}})
    assert job is not None, problems
    return job


def begin(store: Store, job: Job, run: str = RUN, restarts: int = 3) -> None:
    """Record a run whose attempt is being stopped."""

    def write(connection) -> None:  # type: ignore[no-untyped-def]
        run_store.create_run(
            connection, run, name="job", engine=job.engine, job=dump_job(job), time=0.0, restarts=restarts,
            addresses=queue_order.addresses_of(job), source=None, accepted=[],
        )  # fmt: skip
        run_store.append(connection, run, EventKind.PREFLIGHT, time=1.0)
        attempts.create(connection, run, 1, master=("a", 1), rendered={}, nodes=(), time=1.0)
        for kind in (EventKind.STARTING, EventKind.STARTED, EventKind.FAILING):
            run_store.append(connection, run, kind, time=2.0)

    store.write(write)


def end(store: Store, code: str, node: str | None, run: str = RUN) -> None:
    problem = Problem(code=code, node=node, values={"node": node})
    store.write(lambda c: restart.end(c, run, 1, EventKind.FAILED, rank=None, problem=problem, time=3.0))


def hosts_of(store: Store, run: str = RUN, attempt: int | None = None) -> list[str]:
    with store.read() as connection:
        return [host.name for host in node_replacement.job_on_nodes(connection, run, attempt).cluster.hosts]


def state_of(store: Store, run: str = RUN) -> RunState | None:
    with store.read() as connection:
        return run_store.state_of(connection, run)


@pytest.mark.parametrize("code", ["node_lost", "gpu_off_bus", "gpu_memory_error", "node_restarted"])
def test_a_spare_takes_the_rank_of_a_node_that_failed(store: Store, code: str) -> None:
    begin(store, job_with())
    end(store, code, HOSTS[0])
    assert state_of(store) is RunState.QUEUED
    assert hosts_of(store) == [SPARES[0], HOSTS[1]]
    assert hosts_of(store, attempt=1) == [*HOSTS], "what ran before keeps its nodes"
    assert hosts_of(store, attempt=2) == [SPARES[0], HOSTS[1]]
    with store.read() as connection:
        assert [*node_replacement.cordons(connection)] == [HOSTS[0]]
        assert queue_order.waiting(connection)[0].addresses == (SPARES[0], HOSTS[1])
        assert HOSTS[0] not in run_store.claims(connection)


@pytest.mark.parametrize("code", ["gpu_off_bus", "gpu_memory_error"])
def test_without_a_free_spare_a_failed_gpu_ends_the_run(store: Store, code: str) -> None:
    begin(store, job_with(()))
    end(store, code, HOSTS[0])
    assert state_of(store) is RunState.FAILED


def test_a_process_that_was_killed_restarts_on_the_same_nodes(store: Store) -> None:
    begin(store, job_with())
    end(store, "killed", HOSTS[0])
    assert (state_of(store), hosts_of(store)) == (RunState.QUEUED, [*HOSTS])


def test_no_spare_is_taken_without_a_restart_that_is_allowed(store: Store) -> None:
    begin(store, job_with(), restarts=0)
    end(store, "node_lost", HOSTS[0])
    assert (state_of(store), hosts_of(store)) == (RunState.FAILED, [*HOSTS])
    with store.read() as connection:
        assert node_replacement.cordons(connection) == {}


def test_a_spare_of_another_run_and_a_spare_that_is_kept_out_are_not_taken(store: Store) -> None:
    begin(store, job_with())
    other = "20260101-000000-other-bbbb"
    store.write(lambda c: run_store.create_run(
        c, other, name="other", engine="x", job=dump_job(job_with()), time=0.0, restarts=0, addresses=[SPARES[0]],
        source=None, accepted=[]))  # fmt: skip
    with store.read() as connection:
        assert node_replacement.next_spare(connection, RUN) == SPARES[1]
    store.write(lambda c: node_replacement.cordon(c, SPARES[1], other, Problem(code="node_lost"), 0.0))
    with store.read() as connection:
        assert node_replacement.next_spare(connection, RUN) is None


@pytest.mark.parametrize("code", ["timeout", "unreachable", "lost"])
def test_a_node_that_does_not_answer_at_the_restart_is_replaced_too(store: Store, code: str) -> None:
    begin(store, job_with())
    end(store, "killed", HOSTS[1])

    def write(connection) -> bool:  # type: ignore[no-untyped-def]
        run_store.append(connection, RUN, EventKind.PREFLIGHT, time=4.0)
        return restart.wait_again(connection, RUN, Problem(code=code, node=HOSTS[1]), 5.0)

    assert store.write(write)
    assert hosts_of(store) == [HOSTS[0], SPARES[0]]
    with store.read() as connection:
        assert queue_order.waiting(connection)[0].not_before == 5.0, "the spare need not be waited for"


def test_a_node_is_kept_out_until_it_is_cleared(store: Store) -> None:
    store.write(lambda c: node_replacement.cordon(c, HOSTS[1], RUN, LOST, 0.0))
    job = with_spares(job_with())
    with store.read() as connection:
        results = check_cordons(job, node_replacement.cordons(connection))
    assert [result.status for result in results] == ["ok", "failure", "ok", "ok"]
    (problem,) = [result.problem for result in results if result.problem]
    for lang in LANGUAGES:
        rendered = render_problem(lang, problem)
        assert "node_lost" not in rendered["message"]
        assert render_problem(lang, LOST)["message"] in rendered["message"]
        assert rendered["reason"] == "node_lost"
    assert store.write(lambda c: node_replacement.uncordon(c, HOSTS[1])) is True
    assert store.write(lambda c: node_replacement.uncordon(c, HOSTS[1])) is False
    with store.read() as connection:
        assert check_cordons(job, node_replacement.cordons(connection)) == []


def test_what_is_wrong_with_a_spare_is_a_warning_at_its_own_field() -> None:
    job = job_with()
    broken = Checks(3, SPARES[1]).wrong("login", "timeout", "cluster.hosts[3].address")
    result = of_spare(job, broken)
    assert result.problem is not None
    assert (result.status, result.problem.severity, result.problem.field) == (
        "warning",
        "warning",
        "cluster.spares[1].address",
    )
    node = Checks(1, HOSTS[1]).wrong("login", "timeout", "cluster.hosts[1].address")
    assert of_spare(job, node) is node


@pytest.mark.parametrize(
    ("number", "field"),
    [(1, "cluster.hosts[1].address"), (2, "cluster.spares[0].address"), (3, "cluster.spares[1].address")],
)
def test_a_field_of_a_host_after_the_nodes_is_that_of_a_spare(number: int, field: str) -> None:
    assert own_field(job_with(), f"cluster.hosts[{number}].address") == field
    assert own_field(job_with(), "cluster.run_root") == "cluster.run_root"


def test_the_only_host_of_a_job_for_slurm_is_its_login_node() -> None:
    job = with_values(job_with(), {"cluster.scheduler": Scheduler(login=Login(address="login"))})
    assert own_field(job, "cluster.hosts[0].address") == "cluster.scheduler.login.address"


def test_a_spare_that_is_a_host_too_is_refused() -> None:
    (problem,) = check_nodes(job_with((HOSTS[0],)))
    assert (problem.code, problem.field) == ("host_twice", "cluster.spares[0].address")
