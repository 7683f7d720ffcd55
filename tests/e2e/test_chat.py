"""A chat with the models of a run: real sshd, supervisors and LLaMA-Factory, on CPU.

The trained run is only a record, and its result is a copy of the tiny model: no cheaper test shows the path from the
store over SSH to the text of a model and back, and that no process is left. test_before_and_after.py asks the model of
a real training.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from app.demo import tiny_model
from app.demo.local_nodes import LocalNodes
from backend.engines import results_folder
from backend.job.job import Job
from backend.job.mapping import dump_job, parse_job
from backend.job.problems import ProblemsError
from backend.runs.controller import Controller
from backend.runs.model_chat import ModelChat
from backend.runs.states import EventKind, RunState
from backend.runs.store import run_store
from backend.runs.store.store import Store
from tests.waiting import wait_for
from tools.programs import NODE_PYTHON

NODES = 1
TRAINED = "20261126-000000-tiny-abcd"
QUESTION = {"messages": [{"role": "user", "content": "What is 3 plus 4?"}], "max_tokens": 12, "temperature": 0}
ENDLESS = {**QUESTION, "max_tokens": 8192}
LOADED_S = 240

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def trained_job(cluster: LocalNodes, tiny: Path) -> Job:
    job, problems = parse_job(
        {
            "name": "tiny",
            "cluster": {**cluster.cluster_mapping(str(NODE_PYTHON)), "gpu": "cpu", "gpus_per_node": 1},
            "model": {"path": str(tiny / tiny_model.MODEL_FOLDER), "preset": "qwen3-0.6b"},
            "engine": "llamafactory-ddp",
            "training": {
                "dataset": tiny_model.DATASET,
                "dataset_dir": str(tiny / tiny_model.DATA_FOLDER),
                "template": tiny_model.TEMPLATE,
                "output_dir": str(cluster.folder / "out"),
                "precision": "fp32",
            },
        }
    )
    assert job is not None, problems
    return job


@pytest.fixture
def trained(cluster: LocalNodes, tiny: Path, home: Path) -> Job:
    """Record a finished run whose result is a copy of the tiny model."""
    job = trained_job(cluster, tiny)
    results = Path(results_folder(job, TRAINED))
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
    # The node is in use.
    with pytest.raises(ProblemsError) as refused:
        served.chats.ask(run, "other", QUESTION)
    assert refused.value.problems[0].code == "chat_not_ready"
    streaming = served.chats.ask(run, "base", ENDLESS)
    pieces = streaming.pieces()
    assert next(pieces)
    served.stop(run)
    chat = ended(served, run)
    assert (served.wait(run), chat.phase, chat.left) == (RunState.STOPPED, "ended", 0)
