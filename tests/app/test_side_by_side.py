"""Runs side by side, and the columns of a metric in the list: what the server sends for them."""

import json

import pytest

from app.monitor.downsample import OVERLAY_LIMIT
from app.monitor.poll_request import MOST_COMPARED, PollRequest
from app.monitor.poll_response import PollResponder
from app.monitor.watch import SNAPSHOT_S, RunCache
from backend.cluster.ssh.host_keys import KnownHosts
from backend.runs.controller import Controller
from backend.runs.database import Database
from backend.runs.records import RunLabels
from backend.runs.states import EventKind
from backend.runs.store import logged_metrics
from backend.runs.store import metrics as points
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun

FIRST, SECOND, GONE = "20260101-000000-a-aaaa", "20260101-000001-b-bbbb", "20200101-000000-c-cccc"


class Server:
    """A store with two runs, and the answers to polls."""

    def __init__(self, folder) -> None:
        self.now = 1_800_000_000.0
        self.store = Store(folder / "megaboard.db")
        known_hosts = KnownHosts(folder / "known_hosts", None)
        self.controller = Controller(folder, self.store, known_hosts, clock=lambda: self.now)
        database, clock = Database(self.store), lambda: self.now
        self.responder = PollResponder(RunCache(self.controller, database, clock), database, "en", clock)
        for run, nodes in ((FIRST, 1), (SECOND, 2)):
            stored = StoredRun(self.store, run, now=self.now - 100, name=run[-4:], nodes=nodes)
            stored.start()
            stored.steps(1, 10, loss=2.0 * nodes)
            stored.steps(11, 11, loss=3.0 * nodes)
            rows = [
                {"step": step, "time": 0.0, "metrics": {"eval_loss": value * nodes}}
                for step, value in ((5, 1.5), (9, 1.75))
            ]
            self.store.write(lambda c, run=run, rows=rows: logged_metrics.add(c, run, 1, 0, rows))
        stored.add_event(EventKind.FINISHED)

    def ask(self, **question):
        self.now += SNAPSHOT_S
        answer = self.responder.answer(PollRequest.from_json(question), self.now)
        return None if answer is None else json.loads(answer)


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.controller.close()
    server.store.close()


def compare(*runs: str, **marks):
    return {run: {"points": {}, "metrics": {"eval_loss": []}, **marks.get(run[-4:], {})} for run in runs}


def test_the_curves_of_all_runs_and_only_the_keys_that_differ_are_sent(server):
    answer = server.ask(run="compare/x", compare=compare(FIRST, SECOND))
    assert [head["id"] for head in answer["heads"]] == [FIRST, SECOND]
    assert answer["curves"][SECOND]["series"]["loss"]["y"][-1] == 6.0
    assert answer["logged"][FIRST]["eval_loss"]["y"] == [1.5, 1.75]
    paths = {row["path"]: row["values"] for row in answer["fields"]}
    assert paths["cluster.nodes"] == ["1", "2"]
    assert "model.preset" not in paths


@pytest.mark.slow
def test_a_long_curve_has_few_points_and_keeps_its_spike_in_the_whole_and_in_a_range(server):
    rows = [{"step": n, "time": 0.0, "loss": 9.0 if n == 77_777 else 1.0 + n % 7 / 10} for n in range(12, 100_000)]
    server.store.write(lambda c: points.add_points(c, FIRST, 1, 0, rows))
    while Database(server.store).process_points(FIRST):
        pass
    whole = server.ask(run="compare/x", compare=compare(FIRST))["curves"][FIRST]["series"]["loss"]
    assert OVERLAY_LIMIT / 2 < len(whole["x"]) <= OVERLAY_LIMIT
    assert whole["y"][whole["x"].index(77_777)] == 9.0
    for first, last in ((70_000, 80_000), (77_000, 79_000)):
        answer = server.ask(run="compare/x", compare=compare(FIRST), detail={"first": first, "last": last})
        loss = answer["details"][FIRST]["series"]["loss"]
        assert OVERLAY_LIMIT / 4 < len(loss["x"]) <= OVERLAY_LIMIT
        assert first <= loss["x"][0]
        assert loss["x"][-1] <= last
        assert loss["y"][loss["x"].index(77_777)] == 9.0
        assert min(loss["y"]) == 1.0


def test_a_tab_that_is_up_to_date_gets_nothing(server):
    answer = server.ask(run="compare/x", compare=compare(FIRST, SECOND))
    marks = {
        run[-4:]: {
            "points": {key: answer["curves"][run][key] for key in ("generation", "seq")},
            "metrics": {"eval_loss": [answer["logged"][run]["eval_loss"][key] for key in ("version", "last")]},
        }
        for run in (FIRST, SECOND)
    }
    again = server.ask(run="compare/x", compare=compare(FIRST, SECOND, **marks), seen=answer["versions"])
    assert again is None


def test_a_run_that_does_not_exist_is_named_and_the_others_are_shown(server):
    answer = server.ask(run="compare/x", compare=compare(FIRST, GONE))
    assert GONE in answer["heads"][1]["why"]
    assert FIRST in answer["curves"]
    assert answer["fields"] == []


def test_no_more_runs_are_read_than_can_be_told_apart():
    request = PollRequest.from_json({"compare": {f"run{number}": {} for number in range(50)}})
    assert len(request.compare) == MOST_COMPARED


@pytest.mark.parametrize("value", [None, [], "x", {"a": None}, {"a": {"points": [], "metrics": 1}}, {"": {}}])
def test_a_misshapen_request_is_no_error(server, value):
    assert server.ask(run="", compare=value, metric=value) is not None


def test_the_list_shows_the_last_and_the_best_loss_or_another_metric(server):
    rows = {row["id"]: row["metric"] for row in server.ask(run="")["rows"]}
    assert rows == {FIRST: {"last": 3.0, "best": 2.0}, SECOND: {"last": 6.0, "best": 4.0}}
    answer = server.ask(run="", metric="eval_loss")
    assert {row["id"]: row["metric"] for row in answer["rows"]} == {
        FIRST: {"last": 1.75, "best": 1.5},
        SECOND: {"last": 3.5, "best": 3.0},
    }
    assert [name for name, _ in answer["metric_names"]] == ["loss", "eval_loss"]


def test_labels_reach_the_list(server):
    server.controller.set_labels(FIRST, RunLabels(tags=("a",), note="n", is_hidden=True))
    rows = {row["id"]: row["labels"] for row in server.ask(run="")["rows"]}
    assert rows[FIRST] == {"tags": ["a"], "note": "n", "hidden": True}
    assert rows[SECOND] == {"tags": [], "note": "", "hidden": False}
