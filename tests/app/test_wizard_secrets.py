"""The routes of hidden inputs: a secret that was typed into the wrong field is written nowhere."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.cli import secret_input, serve
from app.web import passwords
from app.web.audit import Audit
from app.web.passwords import load_hash
from app.wizard import secret_fields
from backend.cluster.ssh.passphrases import Passphrases
from backend.job.problems import Problem, ProblemsError
from backend.runs.rank_secrets import Secrets

VALUE = "a-value-of-no-known-shape"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(secret_fields, "SECRETS", Secrets())
    app = FastAPI()
    app.include_router(secret_fields.secret_routes(Audit(tmp_path)))
    return TestClient(app)


def audited(folder: Path) -> list[tuple[str, str]]:
    file = folder / "audit.jsonl"
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
    return [(line["action"], line["name"]) for line in lines]


@pytest.mark.parametrize("name", [f"MY_VARIABLE={VALUE}", VALUE])
def test_a_value_in_the_field_of_the_name_is_refused_and_not_audited(
    client: TestClient, tmp_path: Path, name: str
) -> None:
    assert client.post("/api/secrets", json={"name": name, "value": VALUE}).status_code == 422
    assert client.delete(f"/api/secrets/{name}").json()["names"] == []
    assert audited(tmp_path) == []


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b"\xff", b"[1]", b'{"name": "' + b"A" * 100_000 + b'", "value": "x"}']
)
def test_a_body_that_is_no_answer_of_the_form_is_refused(client: TestClient, tmp_path: Path, body: bytes) -> None:
    answer = client.post("/api/secrets", content=body)
    assert answer.status_code == 422
    assert len(answer.content) < 1000
    assert audited(tmp_path) == []


def test_what_is_kept_and_forgotten_is_audited_by_name(client: TestClient, tmp_path: Path) -> None:
    assert client.post("/api/secrets", json={"name": " NAME ", "value": VALUE}).json()["names"] == ["NAME"]
    assert client.delete("/api/secrets/NAME").json()["names"] == []
    assert audited(tmp_path) == [("put_secret", "NAME"), ("forget_secret", "NAME")]


def test_what_the_command_line_is_given_is_audited_by_name_and_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_input, "SECRETS", Secrets())
    monkeypatch.setenv("MY_TOKEN", VALUE)
    secret_input.take_secrets(Namespace(secret=["MY_TOKEN"]), "en", Audit(tmp_path), job="sft")
    line = json.loads((tmp_path / "audit.jsonl").read_text())
    assert (line["action"], line["name"], line["job"]) == ("put_secret", "MY_TOKEN", "sft")
    assert VALUE not in str(line)


def test_a_key_that_is_unlocked_at_the_terminal_is_audited_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_input, "PASSPHRASES", Passphrases())
    monkeypatch.setattr(secret_input.getpass, "getpass", lambda words: VALUE)
    monkeypatch.setattr(secret_input.sys.stdin, "isatty", lambda: True)
    locked = [ProblemsError([Problem(code="passphrase_needed", values={"identity_file": "/key"})])]

    def act() -> str:
        if locked:
            raise locked.pop()
        return "done"

    assert secret_input.with_passphrases("en", Audit(tmp_path), act) == "done"
    line = json.loads((tmp_path / "audit.jsonl").read_text())
    assert (line["action"], line["identity_file"]) == ("unlock_key", "/key")
    assert VALUE not in str(line)


def test_a_new_password_of_the_page_is_audited_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(serve.PASSWORD_FILE_VARIABLE, raising=False)
    arguments = Namespace(new_password=True, password_file=None)
    serve._password(tmp_path, arguments, "en")
    line = json.loads((tmp_path / "audit.jsonl").read_text())
    assert line["action"] == "new_password"
    (handed,) = tmp_path.glob("password-*.txt")
    assert str(handed) in capsys.readouterr().out
    assert handed.read_text().strip() not in (tmp_path / "audit.jsonl").read_text()


def test_a_password_that_could_not_be_handed_over_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(serve.PASSWORD_FILE_VARIABLE, raising=False)
    monkeypatch.setattr(passwords.time, "time", lambda: 5.0)
    (tmp_path / "password-5.txt").touch()
    with pytest.raises(FileExistsError):
        serve._password(tmp_path, Namespace(new_password=True, password_file=None), "en")
    assert load_hash(tmp_path) is None
