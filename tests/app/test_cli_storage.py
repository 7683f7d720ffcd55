"""`megaboard storage` and `megaboard delete`."""

import json
import zipfile
from pathlib import Path

import pytest

from app.main import main
from app.text import LANGUAGES, t
from backend.runs.states import EventKind
from backend.runs.store.store import Store
from tests.texts import said
from tools.stored_runs import StoredRun

RUN = "20260101-000000-tiny-aaaa"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    store = Store(tmp_path / "megaboard.db")
    for run, ends in ((RUN, True), ("20260101-000000-tiny-bbbb", False)):
        stored_run = StoredRun(store, run, now=1000.0, name="tiny", nodes=1)
        stored_run.start()
        stored_run.steps(1, 5)
        if ends:
            stored_run.exit(0)
            stored_run.add_event(EventKind.FINISHED)
    store.close()
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["status", "--json"]) == 0
    return [item["id"] for item in json.loads(capsys.readouterr().out)]


def test_delete_prints_what_is_deleted_and_what_stays_and_asks_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delete", "aaaa"]) == 2
    output = capsys.readouterr().err
    assert said(output, "cli.delete.goes")["run"] == RUN
    assert t("en", "monitor.storage.kind.curves") in output
    assert f"/{RUN}" in output.split(t("en", "cli.delete.stays"))[1]
    assert "--yes" in output
    assert RUN in listed(capsys)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_delete_archives_into_a_folder_and_prints_the_path(
    home: Path, capsys: pytest.CaptureFixture[str], lang: str
) -> None:
    assert main(["--lang", lang, "delete", RUN, "--archive", str(home / "kept"), "--yes"]) == 0
    output = capsys.readouterr().out
    path = home / "kept" / f"{RUN}.zip"
    assert str(path) in output
    assert zipfile.is_zipfile(path)
    assert listed(capsys) == ["20260101-000000-tiny-bbbb"]
    for command in ("status", "stop", "logs", "resume", "delete"):
        assert main([command, RUN]) == 2
        assert str(path) in capsys.readouterr().err, command


def test_delete_refuses_a_run_that_has_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delete", "bbbb", "--yes", "--json"]) == 2
    assert [problem["code"] for problem in json.loads(capsys.readouterr().out)["problems"]] == ["run_not_over"]


def test_the_record_of_a_deletion_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delete", RUN, "--yes", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["run"], record["by"], record["step"], record["row_counts"]["points"]) == (RUN, "command", 5, 5)


def test_rules_are_set_and_applied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "--raw-days", "never", "--run-days", "30", "--archive-first", "no", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["rules"] == {"raw_days": None, "run_days": 30, "archive": False}
    assert {run["run"] for run in output["runs"]} == {RUN, "20260101-000000-tiny-bbbb"}
    assert output["database"] > 0
    assert main(["storage", "--apply"]) == 0
    assert listed(capsys) == ["20260101-000000-tiny-bbbb"]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_storage_prints_sizes_rules_and_runs(capsys: pytest.CaptureFixture[str], lang: str) -> None:
    assert main(["--lang", lang, "storage", "--compact"]) == 0
    output = capsys.readouterr().out
    assert t(lang, "monitor.storage.growth") in output
    assert RUN in output


def test_invalid_days_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "--raw-days", "-3"]) == 2
    with pytest.raises(SystemExit):
        main(["storage", "--raw-days", "soon"])
