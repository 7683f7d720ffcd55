"""The audit log always has whole lines. An action that cannot be recorded is refused."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from app.main import main
from app.web import audit as audit_module
from app.web.audit import Audit
from backend.job.problems import ProblemsError
from backend.runs.redact import hide


def lines(audit: Audit) -> list[dict[str, object]]:
    return [json.loads(line) for line in audit.path.read_text().splitlines()]


def test_a_full_disk_stops_the_action_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = Audit(tmp_path)
    audit.record("first")

    def half(file: int, data: bytes) -> int:
        os.pwrite(file, data[:7], os.fstat(file).st_size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(audit_module.os, "write", half)
        with pytest.raises(ProblemsError, match="audit_failed") as caught:
            audit.record("second")
    assert caught.value.problems[0].values["reason"] == "No space left on device"
    audit.record("third")
    assert [line["action"] for line in lines(audit)] == ["first", "third"]


def test_an_incomplete_line_damages_no_other_line(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    audit.record("first")
    with audit.path.open("a") as file:
        file.write('{"time": 1, "act')
    audit.record("second")
    whole = audit.path.read_text().splitlines()
    assert [json.loads(line)["action"] for line in (whole[0], whole[2])] == ["first", "second"]


def test_existing_lines_never_change(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    before = b""
    for number in range(5):
        audit.record("act", number=number)
        now = audit.path.read_bytes()
        assert now.startswith(before)
        before = now


def record_many(home: Path) -> None:
    audit = Audit(home)
    for number in range(20):
        audit.record("act", number=number, text="x" * 5000)


def test_several_processes_write_whole_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=record_many, args=(tmp_path,)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(lines(Audit(tmp_path))) == 80


def test_a_secret_that_a_user_entered_is_recorded_nowhere(tmp_path: Path) -> None:
    hide("audit-canary-value")
    audit = Audit(tmp_path)
    audit.record("launch", note="audit-canary-value", more=["a audit-canary-value b"], token="other")
    assert "canary" not in audit.path.read_text()
    assert "other" not in audit.path.read_text()


@pytest.mark.parametrize("command", [["status"], ["logs", "x"], ["queue"]])
def test_an_unreadable_database_is_reported_as_a_problem(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "megaboard.db").write_bytes(b"not a database " * 1000)
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    assert main(["--lang", "en", *command]) == 1
    assert str(tmp_path / "megaboard.db") in capsys.readouterr().err
    assert (tmp_path / "megaboard.db").read_bytes() == b"not a database " * 1000


def test_a_lone_surrogate_from_a_browser_is_recorded_as_a_question_mark(tmp_path):
    audit = Audit(tmp_path)
    audit.record("stop", run="\ud800")
    assert lines(audit)[0]["run"] == "?"
