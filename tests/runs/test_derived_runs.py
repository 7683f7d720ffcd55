"""Runs that use the model of another run: how they are stored, and what they are given."""

from typing import Any

import pytest

from backend.cluster.inventory.software import NodeFacts
from backend.cluster.preflight.packages import lacking_metrics
from backend.job.problems import ProblemsError
from backend.runs.connections import Connections
from backend.runs.evaluations import Evaluations
from backend.runs.launch.derived_start import chat_request, derived_job, evaluation_request, split_devices
from backend.runs.records import problem_to_json
from backend.runs.states import EventKind
from backend.runs.store import derived_runs, queue_order, run_store, transitions
from backend.runs.store.derived_runs import DerivedRun
from backend.runs.store.store import Store
from tests.engines.jobs import ddp, job


@pytest.mark.parametrize(
    ("free", "count", "devices"),
    [(["0", "1", "2", "3"], 2, ["0,1", "2,3"]), (["4"], 2, ["4", "4"]), (["0", "1", "2"], 2, ["0", "1"]),
     (["0", "3"], 1, ["0,3"])],
)  # fmt: skip
def test_models_share_the_free_gpus(free, count, devices):
    assert split_devices(free, count) == devices


def test_a_derived_job_has_one_node_of_the_trained_one():
    trained = ddp(nodes=3)
    small = derived_job(trained, 2)
    assert (small.cluster.hosts, small.cluster.gpus_per_node) == (trained.cluster.hosts[:1], 2)


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda: evaluation_request(job(engine="swift-ddp"), ["base"], None, 5, 5), "evaluation_by_swift"),
        (lambda: chat_request(job(engine="swift-ddp", training__stage="rm"), ["base"], None), "chat_of_scores"),
        (lambda: chat_request(ddp(), ["nonsense"], None), "chat_no_model"),
        (lambda: evaluation_request(ddp(training__stage="dpo"), ["base"], None, 5, 5), "evaluation_needs_sft"),
        (lambda: evaluation_request(ddp(), ["base"], None, 201, 5), "evaluation_too_large"),
        (lambda: evaluation_request(ddp(), ["base"], None, 5, 0), "evaluation_too_large"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(ask, code):
    with pytest.raises(ProblemsError) as refused:
        ask()
    assert [problem.code for problem in refused.value.problems] == [code]


@pytest.mark.parametrize(
    ("values", "data", "keys"),
    [
        ({"training__eval_size": 0.1}, "held_out", {"val_size", "dataset"}),
        ({"training__eval_dataset": "other"}, "eval_dataset", {"eval_dataset"}),
        ({}, "trained", {"eval_dataset"}),
    ],
)
def test_an_evaluation_reads_the_data_that_the_job_holds_out(values: dict[str, Any], data: str, keys: set[str]):
    request: Any = evaluation_request(ddp(**values), ["tuned", "base"], None, 5, 5)
    assert request["data"] == data
    assert {"val_size", "dataset", "eval_dataset"} & request["config"].keys() == keys


def test_an_evaluation_shows_what_its_node_lacked_for_the_metrics_at_its_start(tmp_path):
    store = Store(tmp_path / "megaboard.db")
    derived = DerivedRun(
        run="e", kind="evaluation", trained="t", request=evaluation_request(ddp(), ["base"], None, 5, 5)
    )
    store.write(lambda c: derived_runs.create(c, derived, ddp(), now=1.0))
    evaluations = Evaluations(
        store, Connections(lambda host: pytest.fail("it reads only the store")), clock=lambda: 2.0
    )
    newest = lambda: evaluations.newest("t")  # noqa: E731
    assert newest().note is None
    note = lacking_metrics(ddp(), NodeFacts(home="/", hostname="n", python="3.11", metrics={"jieba": "1"}), "n0")
    detail = {"warnings": [problem_to_json(note)]}
    store.write(lambda c: run_store.append(c, "e", EventKind.WARNINGS_PASSED, time=2.0, detail=detail))
    assert (newest().note.code, newest().note.values["modules"]) == ("metrics_missing", ["nltk", "rouge-chinese"])
    store.close()


def test_a_second_start_gives_the_chat_that_lives_and_a_chat_is_never_resumed(tmp_path):
    store = Store(tmp_path / "megaboard.db")
    start = lambda run: store.write(  # noqa: E731
        lambda c: derived_runs.create(
            c, DerivedRun(run=run, kind="chat", trained="trained", request={}), ddp(), now=1.0
        )
    )
    assert (start("a"), start("b")) == ("a", "a")
    with store.read() as connection:
        assert [waiting.run for waiting in queue_order.waiting(connection)] == ["a"]
    store.write(lambda c: transitions.end(c, "a", save=False, now=2.0))
    assert start("c") == "c"
    store.write(lambda c: transitions.end(c, "c", save=False, now=3.0))
    with store.read() as connection:
        assert run_store.events(connection, "c")[-1].kind is EventKind.STOPPED
        with pytest.raises(ProblemsError) as refused:
            transitions.refuse_unless_ended(connection, "c")
    assert refused.value.problems[0].code == "cannot_resume"
    store.close()
