"""`megaboard logs` of every attempt of a run."""

from pathlib import Path

import pytest

from app.main import main
from backend.job.problems import Problem
from backend.runs.records import problem_to_json
from backend.runs.states import EventKind
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun

RUN = "20260101-000000-qwen3-vl-8b-sft-aaaa"


@pytest.fixture(autouse=True)
def stopped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a run whose first attempt failed on node 2."""
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=1e9)
    run.start()
    run.log(2, "rank2.log", b"of the first\n")
    run.restart(rank=2)
    run.log(0, "rank0.log", b"of the second\n")
    run.add_event(EventKind.STOP_REQUESTED, save=False)
    run.add_event(EventKind.STOPPED)
    store.close()


def test_the_newest_attempt_is_read_unless_another_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", RUN]) == 0
    assert capsys.readouterr().out == "of the second\n\n"
    assert main(["logs", RUN, "--attempt", "1"]) == 0
    assert capsys.readouterr().out == "of the first\n\n", "of the node that failed"


@pytest.mark.parametrize(
    ("lang", "option", "words"),
    [
        ("en", "--attempt=3", "its newest is 2"),
        ("zh", "--attempt=3", "最新为第 2 次"),
        ("en", "--kib=0", "--kib is at least 1"),
        ("en", "--kib=-4", "--kib is at least 1"),
    ],
)
def test_an_unknown_attempt_and_an_invalid_size_are_refused(
    capsys: pytest.CaptureFixture[str], lang: str, option: str, words: str
) -> None:
    assert main(["--lang", lang, "logs", RUN, option]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["logs", "stop", "calibrate"])
def test_an_empty_id_does_not_match_the_only_run(command: str) -> None:
    """This is `megaboard stop "$RUN"` with an unset variable."""
    assert main([command, ""]) == 2


def test_the_failed_node_is_not_another_node_whose_address_has_the_same_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, "20260102-000000-other-bbbb", now=1e9, addresses=["10.0.0.10", "10.0.0.1"])
    run.start()
    run.log(0, "rank0.log", b"of the first\n")
    run.log(1, "rank1.log", b"of the second\n")
    problem = problem_to_json(Problem(code="out_of_memory", node="10.0.0.1"))
    run.add_event(EventKind.FAILING, 1, problem=problem)
    run.add_event(EventKind.FAILED, problem=problem)
    store.close()
    assert main(["logs", run.id]) == 0
    assert capsys.readouterr().out == "of the second\n\n"
