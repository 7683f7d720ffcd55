"""`megaboard metrics` and the page's CSV have every number of a run."""

import csv
import io
import json
import math
from pathlib import Path

import pytest

from app.main import main
from app.metrics_csv import csv_lines
from backend.job.problems import ProblemsError
from backend.runs.database import Database
from backend.runs.store import logged_metrics
from tools.stored_runs import StoredRun

RUN = "20260101-000000-metrics-aaaa"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    database = Database.open(tmp_path / "megaboard.db")
    run = StoredRun(database.store, RUN, now=1.0)
    run.start()
    run.steps(1, 4)
    rows = [
        {"step": 2, "time": 5.0, "metrics": {"eval_loss": 2.0, 'my "own", name': 1.0}},
        {"step": 4, "time": 6.0, "metrics": {"eval_loss": 1.0, "mine": math.nan}},
    ]
    run.store.write(lambda c: logged_metrics.add(c, RUN, 1, 0, rows))
    run.restart(2)
    run.steps(3, 3, attempt=2)
    database.close()
    return tmp_path


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_csv_has_a_row_for_each_step_and_a_column_for_each_name(home: Path) -> None:
    assert main(["metrics", RUN, "--csv", str(home / "out.csv")]) == 0
    rows = table((home / "out.csv").read_text())
    assert [(row["attempt"], row["step"]) for row in rows] == [
        ("1", "1"),
        ("1", "2"),
        ("1", "3"),
        ("1", "4"),
        ("2", "3"),
    ]
    assert [row["eval_loss"] for row in rows] == ["", "2.0", "", "1.0", ""]
    assert (rows[1]['my "own", name'], rows[3]["mine"]) == ("1.0", "nan")
    assert all(float(row["loss"]) > 0 for row in rows)


def test_a_csv_of_some_names_has_only_their_steps(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", RUN, "--csv", "-", "--name", "eval_loss"]) == 0
    rows = table(capsys.readouterr().out)
    assert [list(row) for row in rows] == [["attempt", "step", "time", "eval_loss"]] * 2


def test_the_summary_has_the_last_value_on_the_curve_and_its_extremes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", RUN, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["eval_loss"] == {
        **{"name": "eval_loss", "count": 2, "step": 2, "last": 2.0},
        **{"lowest": 2.0, "highest": 2.0, "better": "lower"},
    }
    assert main(["metrics", RUN]) == 0
    assert "eval_loss" in capsys.readouterr().out


def test_an_unknown_run_has_no_csv(home: Path) -> None:
    database = Database.open(home / "megaboard.db")
    with pytest.raises(ProblemsError):
        next(csv_lines(database, "nothing"))
    database.close()
