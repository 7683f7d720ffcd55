"""`megaboard storage` and `megaboard delete`."""

import json
import zipfile
from pathlib import Path

import pytest

from app.main import main
from backend.runs.states import EventKind
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun

RUN = "20260101-000000-tiny-aaaa"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    store = Store(tmp_path / "megaboard.db")
    for run, ends in ((RUN, True), ("20260101-000000-tiny-bbbb", False)):
        made = StoredRun(store, run, now=1000.0, name="tiny", nodes=1)
        made.start()
        made.steps(1, 5)
        if ends:
            made.exit(0)
            made.add_event(EventKind.FINISHED)
    store.close()
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["status", "--json"]) == 0
    return [one["id"] for one in json.loads(capsys.readouterr().out)]


def test_delete_says_what_goes_and_stays_and_asks_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delete", "aaaa"]) == 2
    said = capsys.readouterr().err
    assert f"all data of {RUN}" in said
    assert "Curves (rank 0)" in said
    assert f"/{RUN}" in said.split("including checkpoints")[1]
    assert "--yes" in said
    assert RUN in listed(capsys)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_delete_archives_into_a_folder_and_says_where(
    home: Path, capsys: pytest.CaptureFixture[str], lang: str
) -> None:
    assert main(["--lang", lang, "delete", RUN, "--archive", str(home / "kept"), "--yes"]) == 0
    said = capsys.readouterr().out
    path = home / "kept" / f"{RUN}.zip"
    assert str(path) in said
    assert zipfile.is_zipfile(path)
    assert listed(capsys) == ["20260101-000000-tiny-bbbb"]
    for command in ("status", "stop", "logs", "resume", "delete"):
        assert main([command, RUN]) == 2
        assert str(path) in capsys.readouterr().err, command


def test_a_run_that_goes_on_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delete", "bbbb", "--yes", "--json"]) == 2
    assert [one["code"] for one in json.loads(capsys.readouterr().out)["problems"]] == ["run_not_over"]


def test_the_record_of_a_deletion_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delete", RUN, "--yes", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["run"], record["by"], record["step"], record["row_counts"]["points"]) == (RUN, "command", 5, 5)


def test_rules_are_set_and_applied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "--raw-days", "never", "--run-days", "30", "--archive-first", "no", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rules"] == {"raw_days": None, "run_days": 30, "archive": False}
    assert {one["run"] for one in found["runs"]} == {RUN, "20260101-000000-tiny-bbbb"}
    assert found["database"] > 0
    assert main(["storage", "--apply"]) == 0
    assert listed(capsys) == ["20260101-000000-tiny-bbbb"]


@pytest.mark.parametrize(("lang", "words"), [("en", "Growth per day"), ("zh", "每日增长")])
def test_storage_prints_sizes_rules_and_runs(capsys: pytest.CaptureFixture[str], lang: str, words: str) -> None:
    assert main(["--lang", lang, "storage", "--compact"]) == 0
    said = capsys.readouterr().out
    assert words in said
    assert RUN in said


def test_days_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "--raw-days", "-3"]) == 2
    with pytest.raises(SystemExit):
        main(["storage", "--raw-days", "soon"])
