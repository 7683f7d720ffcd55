"""`megaboard stop` of an external run: it has no processes on nodes whose end could be proved."""

import time
from pathlib import Path

import pytest

from app.main import main
from backend.runs.collect.external_run import register, watched_job
from backend.runs.store.store import Store

RUN = "20260101-000000-mine-aaaa"


def test_the_end_of_watching_is_reported_with_status_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    store = Store(tmp_path / "megaboard.db")
    job = watched_job([{"address": "127.0.0.1", "port": 1}], "/runs/mine")
    store.write(lambda connection: register(connection, RUN, job, ["trainer_log.jsonl"], time.time()))
    store.close()
    assert main(["stop", "mine"]) == 0
    assert capsys.readouterr().out == f"{RUN}: No longer watched\n"
