"""`megaboard logs` of every attempt of a run."""

from pathlib import Path

import pytest

from app.main import main
from backend.jobs.states import EventKind
from backend.jobs.store import Store
from tests.app.stored_runs import StoredRun

RUN = "20260101-000000-qwen3-vl-8b-sft-aaaa"


@pytest.fixture(autouse=True)
def stopped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first attempt failed on node 2."""
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=1e9)
    run.start()
    run.log(2, "rank2.log", b"of the first\n")
    run.attempt_again(rank=2)
    run.log(0, "rank0.log", b"of the second\n")
    run.tell(EventKind.STOP_REQUESTED, save=False)
    run.tell(EventKind.STOPPED)
    store.close()


def test_the_newest_attempt_is_read_unless_another_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", RUN]) == 0
    assert capsys.readouterr().out == "of the second\n\n"
    assert main(["logs", RUN, "--attempt", "1"]) == 0
    assert capsys.readouterr().out == "of the first\n\n", "of the node that failed"


@pytest.mark.parametrize(("lang", "words"), [("en", "its newest is 2"), ("zh", "最新为第 2 次")])
def test_an_attempt_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str], lang: str, words: str) -> None:
    assert main(["--lang", lang, "logs", RUN, "--attempt", "3"]) == 2
    assert words in capsys.readouterr().err
