"""The queue and the next attempt in a real browser. The checkpoints are on a real node."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from app.text import t
from backend.job.mapping import dump_mapping
from backend.job.problems import Problem
from backend.runs.records import NodeRecord, problem_to_json
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, queue_order, run_store
from backend.runs.supervise import restart
from tests.nodes import ssh_nodes
from tests.ui.browser import expect, needs_chromium
from tests.ui.monitored import Monitored, open_run
from tests.waiting import WITHIN_S
from tools.stored_runs import problem

pytestmark = [pytest.mark.ui, needs_chromium]

FILES = ("trainer_state.json", "scheduler.pt", "optimizer.pt", "pytorch_model.bin", "rng_state.pth")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[LocalNodes]:
    with ssh_nodes(tmp_path_factory.mktemp("cluster"), nodes=1) as demo:
        yield demo


@pytest.fixture(autouse=True)
def _empty_queue(server: Monitored) -> None:
    """Cancel the runs that other tests left in the queue."""

    def write(connection) -> None:
        for queued in queue_order.waiting(connection):
            run_store.append(connection, queued.run, EventKind.STOP_REQUESTED, time=time.time())

    server.store.write(write)


def _failed_run(server: Monitored, cluster: LocalNodes, run: str) -> Path:
    """Store a run that was killed after step 30 on the node, and return the folder of its results."""
    (server.home / "known_hosts").write_text((cluster.folder / "known_hosts").read_text())
    job = {
        "version": 1,
        "name": "killed",
        "cluster": cluster.cluster_mapping(sys.executable),
        "model": {"preset": "qwen3-0.6b", "path": "/m"},
        "training": {"output_dir": str(cluster.folder / "out")},
        "engine": "llamafactory-ddp",
    }
    record = NodeRecord(rank=0, address="a", folder=f"/r/{run}", python=sys.executable, mark="m.0", stop={"left": []})

    def write(connection) -> None:
        now = time.time()
        create = {"name": "killed", "engine": "llamafactory-ddp", "job": dump_mapping(job), "time": now, "restarts": 3}
        run_store.create_run(connection, run, addresses=[run], **create)
        attempts.create(connection, run, 1, master=("a", 1), rendered={}, nodes=[record], time=now)
        for kind in (EventKind.PREFLIGHT, EventKind.STARTING, EventKind.STARTED, EventKind.FAILING, EventKind.FAILED):
            run_store.append(connection, run, kind, time=now)

    server.store.write(write)
    return cluster.folder / "out" / run


def _save(results: Path, step: int, *lacking: str) -> None:
    folder = results / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for file in set(FILES) - set(lacking):
        (folder / file).write_bytes(json.dumps({"global_step": step}).encode() if file.endswith("json") else b".")


def _events(server: Monitored, run: str) -> list[run_store.Event]:
    with server.store.read() as connection:
        return run_store.events(connection, run)


def _state(server: Monitored, run: str) -> RunState | None:
    with server.store.read() as connection:
        return run_store.state_of(connection, run)


def _order(server: Monitored) -> list[str]:
    with server.store.read() as connection:
        return [queued.run for queued in queue_order.waiting(connection)]


def _eventually(page, holds) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)  # The page continues to poll.


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_resume_shows_what_is_complete_and_goes_on_from_the_chosen_checkpoint(page, server, cluster, lang) -> None:
    run = f"20260101-000000-killed-{lang}00"
    results = _failed_run(server, cluster, run)
    _save(results, 10)
    _save(results, 20)
    _save(results, 30, "optimizer.pt")
    page.goto(f"{server.url}/{lang}/#runs")
    page.locator(f'tr[data-key="{run}"] [data-do="resume"]').click()
    dialog = page.locator("dialog.mbm-resume")
    expect(dialog.locator("input:checked")).to_have_value("20")
    assert dialog.locator("input").evaluate_all("all => all.map((one) => [one.value, one.disabled])") == [
        ["30", True],
        ["20", False],
        ["10", False],
        ["0", False],
    ]
    expect(dialog.locator("label").first).to_contain_text("optimizer.pt")
    dialog.locator('input[value="10"]').check()
    dialog.locator(".mb-primary").click()
    _eventually(page, lambda: _state(server, run) is RunState.QUEUED)
    (resumed,) = [event for event in _events(server, run) if event.kind is EventKind.RESUMED]
    assert resumed.detail == {"checkpoint": 10, "accepted": []}
    expect(dialog).not_to_be_visible()
    expect(page.locator(".mbm-badge").first).to_have_attribute("data-state", "queued")
    page.locator(".mbm-danger").first.click()
    _eventually(page, lambda: _state(server, run) is RunState.STOPPED)


def test_the_queue_is_shown_ordered_and_cancelled_in_the_list(page, server) -> None:
    names = ("first", "second", "third")
    runs = [
        server.run(f"20260102-00000{i}-{name}-000{i}", name=name, attempted=False).id for i, name in enumerate(names)
    ]
    server.store.write(lambda c: [queue_order.add(c, run) for run in runs])
    page.goto(f"{server.url}/en/#runs")
    row = {name: page.locator(f'tr[data-key="{run}"]') for name, run in zip(names, runs, strict=True)}
    expect(row["second"]).to_contain_text("place 2")
    expect(row["first"].locator('[data-do="up"]')).to_be_disabled()
    row["third"].locator('[data-do="up"]').click()
    expect(row["third"]).to_contain_text("place 2")
    assert _order(server) == [runs[0], runs[2], runs[1]]
    assert "#runs/" not in page.url, "a button of a line does not open it"
    row["first"].locator('[data-do="cancel"]').click()
    expect(row["third"]).to_contain_text("place 1")
    assert _state(server, runs[0]) is RunState.STOPPED
    expect(row["first"].locator('[data-do="resume"]')).to_be_hidden()
    row["first"].locator('[data-do="again"]').click()
    expect(row["first"]).to_contain_text("place 3")
    busy = problem_to_json(Problem(code="node_taken", node="10.0.0.1", values={"node": "10.0.0.1", "run": "x"}))
    for kind in (EventKind.FAILING, EventKind.FAILED):
        server.store.write(lambda c, kind=kind: run_store.append(c, runs[0], kind, time=1.0, detail={"problem": busy}))
    expect(row["first"].locator(".mbm-why")).to_contain_text("10.0.0.1")
    expect(row["first"].locator('[data-do="again"]')).to_be_visible()
    open_run(page, server, runs[0])
    page.get_by_role("button", name="Queue again").click()
    expect(page.locator(".mbm-waits")).to_contain_text("Place 3 in the queue")
    server.store.write(lambda c: run_store.append(c, runs[0], EventKind.STOP_REQUESTED, time=time.time()))
    open_run(page, server, runs[1])
    expect(page.locator(".mbm-waits")).to_contain_text("Place 2 in the queue")
    page.locator(".mbm-danger").first.click()
    _eventually(page, lambda: _state(server, runs[1]) is RunState.STOPPED)


@pytest.mark.parametrize(
    ("lang", "names"),
    [
        ("en", ["Accept these warnings and queue again", "Check again and queue"]),
        ("zh", ["接受这些警告并重新排队", "重新检查并排队"]),
    ],
)
def test_a_run_that_warnings_kept_back_is_queued_from_beside_them_alone(page, server, lang, names) -> None:
    run = server.run(f"20260104-000000-warned-{lang}00", addresses=[f"warned-{lang}"], attempted=False).id
    off = [
        Problem(
            code="clock_off", severity="warning", node=node, values={"node": node, "seconds": 3, "command": "x" * 30}
        )
        for node in ("a", "b")
    ]
    stored = {"problem": problem_to_json(Problem(code="warnings_not_accepted"))}
    stored["warnings"] = [problem_to_json(warning) for warning in off]
    for kind in (EventKind.PREFLIGHT, EventKind.FAILING, EventKind.FAILED):
        server.store.write(lambda c, kind=kind: run_store.append(c, run, kind, time=time.time(), detail=stored))
    page.goto(f"{server.url}/{lang}/#runs")
    row = page.locator(f'tr[data-key="{run}"]')
    expect(row.locator(".mbm-why")).not_to_be_empty()
    expect(row.locator('[data-do="again"]')).to_be_hidden()
    open_run(page, server, run, lang)
    expect(page.locator(".mbm-unaccepted .mbm-buttons button")).to_have_text(names)
    expect(page.locator(".mbm-warnings li > span")).to_contain_text(["a, b"])
    expect(page.locator(".mbm-warnings .mb-command button")).to_have_text(t(lang, "wizard.copy"))
    expect(page.locator(".mbm-title .mb-primary:visible")).to_have_count(0)
    for nothing in (".mbm-charts", ".mbm-logs", ".mbm-nodes"):
        expect(page.locator(nothing)).to_be_hidden()
    page.get_by_role("button", name=names[1]).click()
    _eventually(page, lambda: _state(server, run) is RunState.QUEUED)


def test_automatic_restarts_are_shown_and_their_number_can_be_changed(page, server) -> None:
    run = server.run("20260103-000000-restarts-0000")
    run.start()
    run.steps(1, 30)
    server.store.write(lambda c: restart.allow(c, run.id, 3))
    open_run(page, server, run.id)
    count = page.locator(".mbm-attempts input")
    expect(count).to_have_value("3")
    count.fill("5")
    count.blur()
    _eventually(page, lambda: _allowed(server, run.id) == 5)

    def lose(connection) -> None:
        run_store.append(connection, run.id, EventKind.LOSING, time=time.time(), rank=2)
        values = {"node": run.addresses[2], "seconds": 31}
        problem = Problem(code="node_lost", node=run.addresses[2], values=values)
        restart.end(connection, run.id, 1, EventKind.LOST, rank=2, problem=problem, time=time.time())

    server.store.write(lose)
    expect(page.locator(".mbm-waits")).to_contain_text("The gang restarts at")
    expect(page.locator(".mbm-attempts")).to_contain_text("1 used")
    expect(page.locator(".mbm-events")).to_contain_text("Automatic restart, 1 of 5")
    expect(page.locator(".mbm-trouble strong")).to_contain_text(run.addresses[2])


@pytest.mark.parametrize(
    ("lang", "node", "file", "none"),
    [
        ("en", "Node", "File", "Attempt 2 has no log of this node so far."),
        ("zh", "节点", "文件", "第 2 次启动目前没有该节点的日志。"),
    ],
)
def test_after_a_restart_the_panel_shows_the_new_attempts_log_of_the_node_that_failed(
    page, server, lang, node, file, none
) -> None:
    run = server.run(f"20260103-000001-restarted-{lang}00")
    run.start()
    run.log(2, "rank2.log", b"step 1\n")
    run.log(2, "out.log", b"signal 9\n")
    open_run(page, server, run.id, lang)
    why = problem("killed", run.addresses[2], rank=2, file="out.log", exit=-9, lines="signal 9")
    run.add_event(EventKind.FAILING, 2, problem=why)
    box, files = page.locator(".mbm-log"), page.get_by_label(file, exact=True)
    expect(box).to_have_text("signal 9\n")
    run.restart(checkpoint_step=30, rank=2)
    expect(box).to_have_attribute("data-empty", none)
    run.log(2, "rank2.log", b"step 31\n")
    expect(box).to_have_text("step 31\n")
    expect(page.locator(".mbm-logs").get_by_label(node, exact=True)).to_have_value("2")
    expect(files).to_have_value("rank2.log")
    run.log(2, "out.log", b"a warning\n")
    run.log(2, "rank2.log", b"step 32\n")
    expect(box).to_have_text("step 31\nstep 32\n")


def test_a_file_that_the_user_chose_is_shown_again_once_the_new_attempt_has_it(page, server) -> None:
    run = server.run("20260103-000002-chosen-0000")
    run.start()
    run.log(0, "rank0.log", b"step 1\n")
    run.log(0, "out.log", b"console\n")
    open_run(page, server, run.id)
    box, files = page.locator(".mbm-log"), page.get_by_label("File", exact=True)
    files.select_option("out.log")
    expect(box).to_have_text("console\n")
    run.restart(checkpoint_step=30)
    run.log(0, "rank0.log", b"step 31\n")
    expect(box).to_have_text("step 31\n")
    expect(files).to_have_value("rank0.log")
    run.log(0, "out.log", b"the console of the second attempt\n")
    expect(box).to_have_text("the console of the second attempt\n")
    expect(files).to_have_value("out.log")


@pytest.mark.parametrize(
    ("lang", "words"), [("en", ["1 h 00 min", "of 2 attempts"]), ("zh", ["1 小时 00 分", "共 2 次启动"])]
)
def test_the_pause_between_two_attempts_is_not_shown_as_elapsed(page, server, lang, words) -> None:
    run = server.run(f"20260104-000000-paused-{lang}00")
    run.now = time.time() - 90_000
    run.start()
    run.now += 3600
    run.add_event(EventKind.STOP_REQUESTED)
    run.add_event(EventKind.STOPPED)
    run.now += 80_000
    run.add_event(EventKind.RESUMED)
    run.attempt += 1
    run.begin(None)
    run.start()
    run.add_event(EventKind.STOP_REQUESTED)
    run.add_event(EventKind.STOPPED)
    open_run(page, server, run.id, lang)
    shown = page.locator(".mbm-facts > div").first
    for word in words:
        expect(shown).to_contain_text(word)


def _allowed(server: Monitored, run: str) -> int:
    with server.store.read() as connection:
        return restart.allowed(connection, run)
