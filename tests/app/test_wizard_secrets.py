"""The routes of what is typed unseen: a value that went into the wrong field is written nowhere."""

import json
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.audit import Audit
from app.wizard import secrets
from backend.jobs.secrets import Secrets

VALUE = "a-value-of-no-known-shape"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(secrets, "SECRETS", Secrets())
    app = FastAPI()
    app.include_router(secrets.secret_routes(Audit(tmp_path)))
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


def test_what_is_kept_and_forgotten_is_audited_by_name(client: TestClient, tmp_path: Path) -> None:
    assert client.post("/api/secrets", json={"name": " NAME ", "value": VALUE}).json()["names"] == ["NAME"]
    assert client.delete("/api/secrets/NAME").json()["names"] == []
    assert audited(tmp_path) == [("put_secret", "NAME"), ("forget_secret", "NAME")]
