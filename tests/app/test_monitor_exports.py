"""A finished run offers its export. The page shows its progress up to the commands that serve the model, or to the
error."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.monitor.exports import Exports
from backend.job.problems import Problem, ProblemsError
from backend.runs.records import RunSnapshot
from backend.runs.states import EventKind
from backend.runs.store.store import Store
from backend.runs.tasks.export import Exported
from backend.runs.view.snapshot import snapshot
from tests.waiting import WITHIN_S
from tools.stored_runs import StoredRun

RUN = "20261121-101500-job-0a1b"

MADE = Exported(folder="/x", node="10.0.0.1", kind="merge", serve=("vllm serve /x",))


@dataclass
class Nodes:
    """A controller whose node works until a test lets it end."""

    let: threading.Event = field(default_factory=threading.Event)
    telling: threading.Event = field(default_factory=threading.Event)
    ends: list[Exported | ProblemsError] = field(default_factory=list)

    def export(self, run_id: str, tell: Callable[[str], object]) -> Exported:
        tell("Loading weights: 35%")
        self.telling.set()
        assert self.let.wait(WITHIN_S)
        end = self.ends.pop(0)
        if isinstance(end, ProblemsError):
            raise end
        return end


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredRun]:
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=1000.0, nodes=1)
    run.start()
    yield run
    store.close()


def look(run: StoredRun) -> RunSnapshot:
    with run.store.read() as connection:
        return snapshot(connection, RUN, 2000.0)


@pytest.fixture
def finished(stored: StoredRun) -> RunSnapshot:
    stored.steps(1, 2)
    stored.add_event(EventKind.FINISHED)
    return look(stored)


def rest(exports: Exports, run: RunSnapshot) -> dict[str, object]:
    for thread in threading.enumerate():
        if thread.name == f"export {run.id}":
            thread.join(WITHIN_S)
    return dict(exports.view(run, "en") or {})


def test_a_run_that_has_not_ended_or_took_no_step_offers_nothing(stored: StoredRun) -> None:
    assert Exports(Nodes()).view(look(stored), "en") is None
    stored.add_event(EventKind.FINISHED)
    assert Exports(Nodes()).view(look(stored), "en") is None


def test_an_export_is_followed_to_the_commands_that_serve(finished: RunSnapshot) -> None:
    nodes = Nodes(ends=[MADE])
    exports = Exports(nodes)
    assert exports.view(finished, "en") == {"phase": "offer"}
    exports.start(finished.id)
    assert nodes.telling.wait(WITHIN_S)
    assert exports.view(finished, "en") == {"phase": "working", "line": "Loading weights: 35%"}
    exports.start(finished.id)
    nodes.let.set()
    done = rest(exports, finished)
    assert (done["phase"], done["serve"]) == ("done", ["vllm serve /x"])
    assert nodes.ends == []


def test_a_failure_is_reported_and_may_be_tried_again(finished: RunSnapshot) -> None:
    failure = ProblemsError([Problem(code="export_failed", node="10.0.0.1", values={"node": "n", "lines": "no disk"})])
    nodes = Nodes(ends=[failure, MADE])
    nodes.let.set()
    exports = Exports(nodes)
    exports.start(finished.id)
    failed = rest(exports, finished)
    assert failed["phase"] == "failed"
    assert "no disk" in failed["problem"]["message"]  # type: ignore[index]
    exports.start(finished.id)
    assert rest(exports, finished)["phase"] == "done"
