"""`megaboard label` changes only the labels that it is given."""

import json
from pathlib import Path

import pytest

from app.cli.output import DONE, WRONG_INPUT
from app.main import main
from backend.runs.database import Database
from tools.stored_runs import StoredRun

RUN = "20260101-000000-label-aaaa"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    database = Database.open(tmp_path / "megaboard.db")
    StoredRun(database.store, RUN, now=1.0).start()
    database.close()
    return tmp_path


def labels(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert main(["label", RUN, "--json", *options]) == DONE
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    assert answer.pop("run") == RUN
    return answer


def test_what_no_option_names_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert labels(capsys) == {"tags": [], "note": "", "hidden": False}
    labels(capsys, "--tag", "mine", "--tag", "best", "--note", "loss; 'quoted'")
    assert labels(capsys, "--hide") == {"tags": ["mine", "best"], "note": "loss; 'quoted'", "hidden": True}
    assert labels(capsys, "--untag", "mine", "--unhide")["tags"] == ["best"]
    assert labels(capsys, "--note", "") == {"tags": ["best"], "note": "", "hidden": False}


def test_an_unusable_tag_is_refused_and_nothing_is_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["label", RUN, "--tag", "a,b", "--note", "lost?"]) == WRONG_INPUT
    capsys.readouterr()
    assert labels(capsys) == {"tags": [], "note": "", "hidden": False}
