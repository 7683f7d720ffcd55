"""The utilization chart: a tab gets the data that it lacks of the measure that it shows, and nothing else."""

import json

from app.monitor import utilization as section
from app.monitor.poll_request import PollRequest
from backend.runs.database import Database
from backend.runs.store import metrics
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun, heartbeat

RUN = "20260101-000000-usage-aaaa"
BEGUN = 1_800_000_000.0


class Tab:
    """A tab that handles the answers as static/monitor/utilization.js does."""

    def __init__(self, store: Store, ranks: int) -> None:
        self.ranks = range(ranks)
        self.looks = 0.0
        self.measure = None
        self.answers = section.UtilizationAnswers(Database(store), self.clock)
        self.have: dict[str, list[int]] = {}
        self.rows: dict[int, list] = {}

    def clock(self) -> float:
        """Return a clock whose every tick is later than the caches of the tick before."""
        self.looks += 2 * section.FRESH_S
        return self.looks

    def tick(self, measure: str | None = None):
        if measure:
            self.measure, self.have, self.rows = measure, {}, {}
        request = {"measure": self.measure, "have": self.have}
        text = self.answers.part(RUN, self.ranks, PollRequest.from_json({"usage": request}).utilization)
        if text is None:
            return None
        answer = json.loads(text)
        self.measure = answer["measure"]
        for node in answer["nodes"]:
            stored = [row for row in self.rows.get(node["rank"], []) if row[0] < node.get("from", 0)]
            self.rows[node["rank"]] = stored + node["rows"]
            self.have[str(node["rank"])] = node["have"]
        return answer


def run_of(store: Store, nodes: int, gpus: int) -> StoredRun:
    run = StoredRun(store, RUN, now=BEGUN, nodes=nodes, gpus_per_node=gpus)
    run.start()
    return run


def test_a_node_shows_the_mean_of_its_gpus_and_names_the_one_that_lags(store):
    run = run_of(store, 1, 8)
    row = heartbeat(0, 8, BEGUN)
    for gpu in row["gpus"]:
        gpu["utilization"] = 20 if gpu["index"] == 5 else 100
        gpu["memory_used_mib"] = gpu["memory_total_mib"] * (1 if gpu["index"] == 3 else 0.5)
    store.write(lambda c: metrics.add_heartbeats(c, run.id, 1, 0, [row], BEGUN))
    tab = Tab(store, 1)
    answer = tab.tick()
    assert (answer["measure"], answer["measures"]) == ("utilization", list(section.MEASURES))
    assert tab.rows[0] == [[BEGUN, 90, 90, 90, 20, 5]]
    tab.tick("memory")
    assert tab.rows[0][0][4:] == [100, 3]
    tab.tick("load")
    assert tab.rows[0] == [[BEGUN, row["load1"], row["load1"], row["load1"]]]


def test_nodes_without_gpus_show_what_their_hosts_do(store):
    run_of(store, 2, 0).beat()
    answer = Tab(store, 2).tick()
    assert (answer["measure"], answer["measures"]) == ("load", ["load", "host_memory"])


def test_nothing_new_is_nothing_sent_and_news_are_the_newest_stretches_of_their_node(store):
    run = run_of(store, 3, 2)
    for _ in range(20):
        run.beat()
        run.now += 2
    tab = Tab(store, 3)
    tab.tick()
    assert len(tab.rows[1]) == 10
    assert tab.tick() is None
    before = tab.rows[1]
    run.beat([1])
    answer = tab.tick()
    assert [(node["rank"], len(node["rows"])) for node in answer["nodes"]] == [(1, 2 if before[-1][0] < run.now else 1)]
    assert tab.rows[1][:-1] == before
    assert tab.tick() is None


def test_a_tab_that_is_left_behind_by_wider_stretches_gets_the_whole_again(store, monkeypatch):
    for module in ("backend.runs.store.utilization", "app.monitor.utilization"):
        monkeypatch.setattr(f"{module}.ROWS", 8)
    run = run_of(store, 1, 1)
    tab, calls = Tab(store, 1), []
    for _ in range(30):
        run.beat()
        run.now += 2
        tab.tick()
        calls.append(len(tab.rows[0]))
    fresh = Tab(store, 1)
    fresh.tick()
    assert tab.rows == fresh.rows
    assert max(calls) <= 8


def test_a_tab_that_does_not_ask_is_sent_none_and_nonsense_is_asked_as_a_new_tab(store):
    run_of(store, 1, 1).beat()
    answers = section.UtilizationAnswers(Database(store), lambda: 0.0)
    assert answers.part(RUN, [0], PollRequest.from_json({}).utilization) is None
    for nonsense in (None, 7, {"measure": 3, "have": [1]}, {"measure": "utilization", "have": {"0": [1, "x", 2]}}):
        answer = answers.part(RUN, [0], PollRequest.from_json({"usage": nonsense}).utilization)
        assert "from" not in json.loads(answer)["nodes"][0]


def test_a_run_whose_nodes_told_nothing_has_none(store):
    run_of(store, 1, 1)
    assert Tab(store, 1).tick() is None


def test_of_many_nodes_each_is_sent_in_wider_stretches_and_no_dip_is_lost(store):
    run = run_of(store, 128, 1)
    for beat in range(16):
        run.beat([0])
        low = {**heartbeat(1, 1, run.now), "gpus": [{"index": 0, "utilization": 5 if beat == 7 else 100}]}
        store.write(lambda c, low=low: metrics.add_heartbeats(c, run.id, 1, 1, [low], run.now))
        run.beat(range(2, 128)) if beat == 0 else None
        run.now += 2
    tab = Tab(store, 128)
    tab.tick()
    assert [len(tab.rows[rank]) for rank in (0, 1)] == [2, 2], "four stretches of four seconds each are one"
    assert min(row[2] for row in tab.rows[1]) == 5
    assert tab.tick() is None
    run.beat([0])
    answer = tab.tick()
    assert [(node["rank"], len(node["rows"])) for node in answer["nodes"]] == [(0, 1 if BEGUN % 16 else 2)]
