"""`megaboard status` shows the same as the page about a run that makes no steps."""

import time
from pathlib import Path

import pytest

from app.main import main
from backend.runs.states import EventKind
from backend.runs.store import metrics
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun, heartbeat

RUN = "20260101-000000-qwen3-vl-8b-sft-aaaa"


@pytest.mark.parametrize(
    ("lang", "words"), [("en", ["No step since", "The last step was 30"]), ("zh", ["起没有新的训练步", "第 30 步"])]
)
def test_status_names_the_node_and_the_rank_that_the_others_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lang: str, words: list[str]
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    monkeypatch.setattr("app.cli.common.REFRESH_S", 0.0)  # Its nodes have only addresses.
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=time.time() - 900, addresses=["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    run.start()
    run.steps(1, 30)
    row = {**heartbeat(1, 1, run.now), "stuck": [[4711, "python", "T", 1]]}
    store.write(lambda c: metrics.add_heartbeats(c, RUN, 1, 1, [row], run.now))
    run.add_event(EventKind.NODE_STUCK, 1, stuck=row["stuck"])
    store.close()
    assert main(["--lang", lang, "status", RUN]) == 0
    out = capsys.readouterr().out
    for item in [*words, "1 · 10.0.0.2", "rank 1: python 4711 (T)", "0 · 10.0.0.1, 1 · 10.0.0.2, 2 · 10.0.0.3"]:
        assert item in out
