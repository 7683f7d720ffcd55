"""A home folder on a full disk: an action that cannot be recorded is refused; log-in and reading work."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.main import main
from app.monitor import actions
from app.monitor.poll_request import PollRequest
from app.monitor.poll_response import PollResponder
from app.monitor.watch import RunCache
from app.services import Services
from app.wizard.events import change
from app.wizard.routes import routes
from backend.runs.store.store import Store, StoreError
from tests.app.tiny_app import browser, log_in, tiny_app, tiny_page
from tests.clock import Clock
from tests.full_disk import FullDisk, full_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FullDisk]:
    with full_disk(tmp_path / "home") as disk:
        yield disk


@pytest.fixture
def services(disk: FullDisk) -> Iterator[Services]:
    services = Services.open(disk.folder)
    yield services
    services.close()


def test_one_can_still_come_in_and_what_is_refused_names_the_file_and_the_fix(
    services: Services, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    client = browser(tiny_app(disk.folder, Clock(), {"en": tiny_page()}, routers=[routes(services)]))
    disk.fill()
    with caplog.at_level(logging.ERROR):
        assert log_in(client, "wrong password").status_code == 401
        assert log_in(client).status_code == 303
    assert caplog.text.count("login_failed") == caplog.text.count('"login"') == 1
    assert "wrong password" not in caplog.text
    assert client.get("/en/").status_code == 200
    values = {"name": "HF_TOKEN", "value": "a-value-of-no-known-shape"}
    for answer in (
        client.post("/api/secrets?lang=zh", json=values),
        client.post("/api/passphrases?lang=zh", json={**values, "name": "/key"}),
    ):
        assert answer.status_code == 422
        problem = answer.json()["problems"][0]
        assert problem["code"] == "audit_failed"
        assert str(disk.folder / "audit.jsonl") in problem["message"]
        assert "空间" in problem["fix"]
    assert client.get("/api/secrets").json()["names"] == []
    assert client.post("/logout").status_code == 303
    disk.free()
    log_in(client)
    assert client.post("/api/secrets", json=values).json()["names"] == ["HF_TOKEN"]
    assert client.delete("/api/secrets/HF_TOKEN").json()["names"] == []


def test_an_edit_of_the_draft_is_refused_with_its_reason_and_the_draft_stays(
    services: Services, disk: FullDisk
) -> None:
    services.draft.edit("name", "before")
    disk.fill()
    assert [problem.code for problem in change(services, {"name": "after"})] == ["store_full"]
    assert services.draft.job_mapping()["name"] == "before"
    assert services.database.trouble is not None
    disk.free()
    assert change(services, {"name": "after"}) == ()
    assert services.database.trouble is None


def test_an_act_of_the_monitor_is_refused_with_its_reason(services: Services, disk: FullDisk) -> None:
    disk.fill()
    refused = actions.act(services, None, "restarts", "no-such-run", {"restarts": 3})  # type: ignore[arg-type]
    assert refused is not None
    assert refused.code == "audit_failed"


def test_a_store_on_a_full_disk_is_read_by_another_process_too(
    services: Services, disk: FullDisk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(disk.folder))
    services.draft.edit("name", "kept")
    disk.fill()
    assert main(["status"]) == 0
    second = Services.open(disk.folder)
    assert second.draft.job_mapping()["name"] == "kept"
    with pytest.raises(StoreError, match="store_full"):
        second.draft.edit("name", "other")
    second.close()


def test_without_room_for_the_stores_index_it_is_the_full_disk_that_is_named(disk: FullDisk) -> None:
    path = disk.folder / "megaboard.db"
    Store(path).close()  # The last connection removes the index.
    disk.fill()
    with pytest.raises(StoreError, match="store_full"):
        Store(path)


def test_the_monitor_says_that_nothing_new_can_be_kept_until_it_can(services: Services, disk: FullDisk) -> None:
    responder = PollResponder(
        RunCache(services.controller, services.database, lambda: 0.0), services.database, "en", lambda: 0.0
    )
    disk.fill()
    change(services, {"name": "after"})
    data = json.loads(responder.answer(PollRequest.from_json({}), 0.0) or "")
    assert "megaboard.db is full" in data["trouble"]["message"]
    observed = {"seen": data["versions"]}
    assert responder.answer(PollRequest.from_json(observed), 0.0) is None
    disk.free()
    change(services, {"name": "after"})
    assert json.loads(responder.answer(PollRequest.from_json(observed), 0.0) or "")["trouble"] is None
