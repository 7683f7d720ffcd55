"""`megaboard label` changes the labels that the page shows."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.main import main
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun

RUN = "20260101-000000-a-aaaa"


def test_tags_note_and_archive_are_changed_one_by_one_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    store = Store(tmp_path / "megaboard.db")
    StoredRun(store, RUN, now=1000.0)
    store.close()

    def label(*options: str) -> dict[str, Any]:
        assert main(["label", RUN, *options, "--json"]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    first = label("--tag", "基线", "--tag", "lr 1e-5", "--note", "two lines\nof text", "--archive")
    assert first == {"run": RUN, "tags": ["基线", "lr 1e-5"], "note": "two lines\nof text", "is_archived": True}
    assert label("--untag", "基线") == {**first, "tags": ["lr 1e-5"]}
    assert label("--note", "", "--unarchive") == {**first, "tags": ["lr 1e-5"], "note": "", "is_archived": False}
    for lang in ("en", "zh"):
        assert main(["--lang", lang, "label", RUN]) == 0
        assert "lr 1e-5" in capsys.readouterr().out
    assert main(["label", RUN, "--tag", "a,b"]) == 2
    assert label() == {**first, "tags": ["lr 1e-5"], "note": "", "is_archived": False}
