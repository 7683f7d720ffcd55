"""A chat with the models of a run: real sshd, supervisors and LLaMA-Factory, on CPU.

The trained run is only a record, and its result is a copy of the tiny model: no cheaper test shows the path from the
store over SSH to the text of a model and back, and that no process is left. test_before_and_after.py asks the model of
a real training.
"""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo import local_nodes, tiny_model
from app.demo.local_nodes import LocalNodes
from backend.cluster.node import NodeError
from backend.cluster.ssh.host_keys import KnownHosts
from backend.engines import results_folder
from backend.job.job import Job
from backend.job.mapping import dump_job, parse_job
from backend.job.problems import ProblemsError
from backend.node.supervisor.processes import find_process, members, send_signal
from backend.runs.controller import Controller
from backend.runs.model_chat import ModelChat
from backend.runs.states import EventKind, RunState
from backend.runs.store import run_store
from backend.runs.store.store import Store
from backend.runs.supervise.gang_rules import Timing
from tests.ui.browser import needs_chromium
from tests.waiting import wait_for
from tools.browser import PASSWORD, VIEWPORT, chromium, without_faults
from tools.browser import served as served_page
from tools.programs import NODE_PYTHON, SWIFT, swift_python

NODES = 1
TRAINED = "20261126-000000-tiny-abcd"
QUESTION = {"messages": [{"role": "user", "content": "What is 3 plus 4?"}], "max_tokens": 12, "temperature": 0}
ENDLESS = {**QUESTION, "max_tokens": 8192}
LOADED_S = 240
ALL_ANSWERED = """() => document.querySelectorAll(".mbm-answer").length === 2
  && [...document.querySelectorAll(".mbm-answer-box small")].every((note) => !note.textContent)"""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def trained_job(cluster: LocalNodes, tiny: Path, engine: str) -> Job:
    nodes = cluster.cluster_mapping(str(NODE_PYTHON))
    is_swift = engine.startswith("swift")
    environments = {"swift": {"python": swift_python()}} if is_swift else nodes["environments"]
    job, problems = parse_job(
        {
            "name": "tiny",
            "cluster": {**nodes, "environments": environments, "gpu": "cpu", "gpus_per_node": 1},
            "model": {"path": str(tiny / tiny_model.MODEL_FOLDER), "preset": "qwen3-0.6b"},
            "engine": engine,
            "training": {
                "dataset": f"{tiny_model.DATASET}.json" if is_swift else tiny_model.DATASET,
                "dataset_dir": str(tiny / tiny_model.DATA_FOLDER),
                "template": tiny_model.TEMPLATE,
                "output_dir": str(cluster.folder / "out"),
                "precision": "fp32",
                "eval_size": 0.1,
            },
        }
    )
    assert job is not None, problems
    return job


@pytest.fixture
def trained(cluster: LocalNodes, tiny: Path, home: Path, request: pytest.FixtureRequest) -> Job:
    """Record a finished run whose result is a copy of the tiny model. The parameter is its engine."""
    job = trained_job(cluster, tiny, getattr(request, "param", "llamafactory-ddp"))
    results = Path(results_folder(job, TRAINED))
    if job.traits.environment == "swift":  # it saves in checkpoints only
        results /= "checkpoint-3"
    shutil.copytree(tiny / tiny_model.MODEL_FOLDER, results, dirs_exist_ok=True)
    store = Store(home / "megaboard.db")

    def record(connection: Any) -> None:
        run_store.create_run(
            connection, TRAINED, name=job.name, engine=job.engine, job=dump_job(job), addresses=[], time=1.0
        )
        for kind in (EventKind.PREFLIGHT, EventKind.STARTING, EventKind.STARTED, EventKind.FINISHED):
            run_store.append(connection, TRAINED, kind, time=2.0)

    store.write(record)
    store.close()
    return job


@pytest.fixture
def controller(home: Path) -> Iterator[Controller]:
    """Replace the controller of conftest.py by one that waits seconds for the proof of a stop."""
    store = Store(home / "megaboard.db")
    controller = Controller(
        home, store, KnownHosts(home / "known_hosts"), timing=Timing(stop_deadline_s=5.0, grace_s=3.0)
    )
    yield controller
    controller.close()
    store.close()


@pytest.fixture
def served(trained: Job, controller: Controller) -> Controller:
    controller.start()
    return controller


def ready(controller: Controller) -> ModelChat:
    def chat() -> ModelChat:
        chat = controller.chats.newest(TRAINED)
        assert chat is not None
        assert chat.phase != "ended", (chat.why, controller.log(chat.run, 0, "rank0.log"))
        return chat

    wait_for(lambda: chat().phase == "ready", LOADED_S)
    return chat()


def ended(controller: Controller, run: str) -> ModelChat:
    assert controller.wait(run, 120).is_final
    chat = controller.chats.newest(TRAINED)
    assert chat is not None
    return chat


def test_base_and_tuned_model_answer_and_leave_no_process(served: Controller) -> None:
    run = served.start_chat(TRAINED, ["tuned", "base"])
    assert served.start_chat(TRAINED, ["tuned"]) == run, "a second tab gets the chat that is there"
    chat = ready(served)
    assert (chat.models, chat.backends) == (("tuned", "base"), {"tuned": "huggingface", "base": "huggingface"})
    texts = ["".join(served.chats.ask(run, model, QUESTION).pieces()) for model in chat.models]
    assert texts[0] == texts[1] != ""
    # A reader that leaves ends the generation: the model would be busy for thousands of tokens otherwise.
    endless = served.chats.ask(run, "tuned", ENDLESS)
    assert next(endless.pieces())
    endless.close()
    assert "".join(served.chats.ask(run, "tuned", QUESTION).pieces()) == texts[0]
    with pytest.raises(ProblemsError) as refused:
        served.chats.ask(run, "other", QUESTION)
    assert refused.value.problems[0].code == "chat_not_ready"
    streaming = served.chats.ask(run, "base", ENDLESS)
    pieces = streaming.pieces()
    assert next(pieces)
    served.stop(run)
    chat = ended(served, run)
    assert (served.wait(run), chat.phase, chat.left) == (RunState.STOPPED, "ended", 0)


@pytest.mark.engines
@pytest.mark.skipif(
    swift_python() is None, reason=f"no ms-swift: `make engines`, or {SWIFT} names a Python that has it"
)
@pytest.mark.parametrize("trained", ["swift-ddp"], indirect=True)
def test_a_model_of_ms_swift_answers_from_its_checkpoint_and_a_stop_while_it_streams_leaves_no_process(
    served: Controller,
) -> None:
    run = served.start_chat(TRAINED, ["tuned", "base"])
    chat = ready(served)
    texts = ["".join(served.chats.ask(run, model, QUESTION).pieces()) for model in chat.models]
    assert texts[0] == texts[1] != ""
    pieces = served.chats.ask(run, "base", ENDLESS).pieces()
    assert next(pieces)
    served.stop(run)
    chat = ended(served, run)
    assert (served.wait(run), chat.phase, chat.left) == (RunState.STOPPED, "ended", 0)


@pytest.mark.engines
def test_a_node_that_is_lost_in_mid_answer_proves_its_end_when_it_is_back(
    served: Controller, cluster: LocalNodes
) -> None:
    run = served.start_chat(TRAINED, ["tuned"])
    ready(served)
    tabs = [served.chats.ask(run, "tuned", ENDLESS).pieces() for _ in range(2)]
    assert next(tabs[0]), "the second tab waits for its turn"
    [folder] = cluster.run_root.glob(f"{run}/1/node0")
    mark = json.loads((folder / "spec.json").read_text())["mark"]
    assert members(mark)
    unreachable(cluster)
    for tab in tabs:
        with pytest.raises(NodeError) as lost:
            "".join(tab)
        assert lost.value.code == "lost"
    wait_for(lambda: (chat := served.chats.newest(TRAINED)) is not None and chat.phase == "unreachable")
    served.stop(run)
    wait_for(lambda: served.snapshot(run).state is RunState.LOST)
    chat = served.chats.newest(TRAINED)
    assert chat is not None
    assert (chat.phase, chat.left) == ("ended", None)
    assert chat.why is not None
    assert members(mark), "the node works on while nobody can reach it"
    cluster.start()
    wait_for(lambda: (chat := served.chats.newest(TRAINED)) is not None and chat.left == 0)
    assert members(mark) == []


def unreachable(cluster: LocalNodes) -> None:
    """End the node's sshd and its sessions, but not what the supervisor has started."""
    for recorded in json.loads((cluster.folder / "nodes.json").read_text()).values():
        server = find_process(recorded["pid"], recorded["start"])
        assert server is not None
        for process in local_nodes._process_tree(server):
            send_signal(process, signal.SIGKILL)


@pytest.mark.engines
def test_an_evaluation_keeps_the_answers_of_both_models_with_the_run(served: Controller, trained: Job) -> None:
    run = served.start_evaluation(TRAINED, ["tuned", "base"], rows=3, max_tokens=4)
    assert served.wait(run, LOADED_S) is RunState.FINISHED, served.log(run, 0, "rank0.log")
    wait_for(lambda: (shown := served.evaluations.newest(TRAINED)) is not None and shown.has_result)
    shown = served.evaluations.newest(TRAINED)
    assert shown is not None
    result = served.evaluations.result(run)
    assert (shown.data, shown.left, len(result["rows"])) == ("held_out", 0, 3)
    prompts = {row["instruction"] for row in tiny_model.make_rows(tiny_model.ROWS)}
    for row in result["rows"]:
        assert any(prompt in row["prompt"] for prompt in prompts)
        assert row["reference"]
        assert row["answers"]["tuned"] == row["answers"]["base"]
    assert set(result["missing"]) in ({"jieba", "nltk", "rouge_chinese"}, set())
    assert ("bleu-4" in result["metrics"]["tuned"]) == (not result["missing"])


@needs_chromium
@pytest.mark.engines
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_starts_a_chat_streams_stops_and_ends_it(trained: Job, home: Path, lang: str) -> None:
    with served_page(home) as server, chromium() as browser:
        page = browser.new_context(viewport=VIEWPORT).new_page()
        page.set_default_timeout(1000 * LOADED_S)
        with without_faults(page):
            page.goto(f"{server.url}/?lang={lang}")
            page.fill("#password", PASSWORD)
            page.click("button[type=submit]")
            page.wait_for_selector(".mb-steps")
            page.evaluate(f"location.hash = '#runs/{TRAINED}'")
            chat = page.locator(".mbm-chat").first
            chat.locator(".mbm-chat-offer button").click()
            page.wait_for_selector(".mbm-chat[data-phase=ready]")
            chat.locator("input[max='8192']").fill("8")
            chat.locator("textarea").fill("What is 3 plus 4?")
            chat.locator("textarea").press("Enter")
            page.wait_for_function(ALL_ANSWERED)
            answers = chat.locator(".mbm-answer").all_inner_texts()
            assert answers[0] == answers[1] != ""
            chat.locator("header .mbm-danger").click()
            page.wait_for_selector(".mbm-chat[data-phase=ended]")
            run = page.locator(".mbm-chat header a").first.get_attribute("href").rpartition("/")[2]
        [folder] = Path(trained.cluster.run_root).glob(f"{run}/1/node0")
        assert members(json.loads((folder / "spec.json").read_text())["mark"]) == []
