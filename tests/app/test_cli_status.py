"""`megaboard status` of one run: what its page says of the time."""

import json
import time
from pathlib import Path

import pytest

from app.main import main
from backend.jobs.states import EventKind
from backend.jobs.store import Store
from tests.app.stored_runs import StoredRun

RUN = "20260101-000000-qwen3-vl-8b-sft-aaaa"


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("en", "Elapsed: 1 h 01 min, of 2 attempts, without the pauses"),
        ("zh", "已用时间：1 小时 01 分；共 2 次启动，不含间隔"),
    ],
)
def test_status_tells_how_long_the_attempts_took_without_the_pause_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lang: str, words: str
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=time.time() - 90_000, addresses=["10.0.0.1", "10.0.0.2"])
    run.start()
    run.now += 3600
    run.tell(EventKind.STOP_REQUESTED)
    run.tell(EventKind.STOPPED)
    run.now += 40_000
    run.tell(EventKind.RESUMED)
    run.attempt += 1
    run.begin(30)
    run.start()
    run.now += 60
    run.tell(EventKind.FINISHED)
    store.close()
    assert main(["--lang", lang, "status", RUN]) == 0
    assert words in capsys.readouterr().out.splitlines()
    assert main(["status", RUN, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["elapsed"] == {"done_s": pytest.approx(3660.0), "since": None}
