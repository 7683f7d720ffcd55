"""A read-only home folder: the page says so and why, and stored data can be read."""

import errno
import os
import sys
from pathlib import Path

import httpx
import pytest

from app.home import make_home, why_read_only
from app.main import main
from app.services import Services
from app.web.passwords import PasswordHash, store_hash
from app.web.shell import build
from app.wizard.events import change
from app.wizard.routes import routes
from backend.runs.store.store import Store, StoreError
from tests.app.tiny_app import browser, log_in, tiny_app
from tests.clock import Clock
from tests.full_disk import read_only
from tests.texts import said
from tools.browser import PASSWORD, Server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home folder whose draft was edited and whose server has ended."""
    home = make_home(tmp_path / "home")
    store = Store(home / "megaboard.db")
    store.set_draft("version: 1\nname: kept\n")
    store.close()
    return home


def test_the_page_is_served_from_a_read_only_home_and_refuses_edits_with_the_reason(home: Path) -> None:
    with read_only(home):
        assert why_read_only(home) == "Read-only file system"
        services = Services.open(make_home(home))
        try:
            app = tiny_app(home, Clock(), {"en": build("en", services)}, routers=[routes(services)])
            client = browser(app)
            assert log_in(client).status_code == 303
            assert client.get("/en/").status_code == 200
            assert services.draft.job_mapping()["name"] == "kept"
            (problem,) = change(services, {"name": "after"})
            assert problem.code == "store_read_only"
            assert services.database.trouble is not None
        finally:
            services.close()


def test_what_a_killed_server_had_not_yet_moved_from_the_log_is_read_too(home: Path) -> None:
    store = Store(home / "megaboard.db")
    store.set_draft("version: 1\nname: newer\n")
    try:
        with read_only(home):
            again = Store(home / "megaboard.db")
            assert again.get_draft() == "version: 1\nname: newer\n"
            with pytest.raises(StoreError, match="store_read_only"):
                again.set_draft("version: 1\n")
            again.close()
    finally:
        store.close()


class Readable(Server):
    """`megaboard serve` with a password that was stored before."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "app.main", "--lang", "en", "serve", "--port", str(self.port)]


@pytest.mark.e2e
def test_the_server_itself_starts_on_it_and_ends(home: Path, tmp_path: Path) -> None:
    """This covers the command line and the controller, which the tests above leave out."""
    store_hash(home, PasswordHash.of(PASSWORD, cost=2))
    server = Readable(home)
    host = server.url.removeprefix("http://")
    server.log = tmp_path / "log"
    with read_only(home):
        server.start()
        base = {"host": host, "origin": server.url}
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=base, timeout=60) as client:
            answer = client.post("/login", data={"password": PASSWORD})
            assert answer.status_code == 303
            client.headers["cookie"] = answer.headers["set-cookie"].split(";")[0]
            assert client.get("/en/").status_code == 200
        server.end()
    text = server.log.read_text()
    assert server.process.returncode == 0, text
    assert said(text, "cli.serve.read_only")["path"] == str(home)
    assert "Traceback" not in text


def test_without_a_password_to_be_read_the_server_says_how_to_give_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(home))
    with read_only(home):
        assert main(["--lang", "en", "serve", "--port", "0"]) == 2
        assert main(["status"]) == 0
    output = capsys.readouterr().err
    assert said(output, "cli.serve.read_only") == {"path": str(home), "reason": os.strerror(errno.EROFS)}
    assert "--password-file" in output
