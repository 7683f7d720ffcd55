"""Two canaries, a token and a key's passphrase, are typed once in the page. They work and are found nowhere afterwards.

Only torchrun is a stand-in. Chromium, the server in its own process, two sshd and the supervisors are real. The
stand-in's ranks print the token, as careless programs do.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.demo.local_nodes import LocalNodes
from backend.job.mapping import dump_mapping
from backend.runs.store.store import Store
from tests.nodes import ssh_nodes
from tests.runs.gangs import stand_in_job
from tests.ui.browser import expect, go, needs_chromium
from tests.waiting import wait_for
from tools.browser import PASSWORD, Server, fetched, logged_in

ENGINE = Path(__file__).parents[1] / "runs" / "engine"
TOKEN = "canary.T0ken=of/the+ranks"
PASSPHRASE = "canary horse 'battery' $taple"

pytestmark = [pytest.mark.e2e, needs_chromium]

PYTHON = """\
if [ "$1" = -m ]; then
  echo "my token is $HF_TOKEN, and on"
  printf %s "$HF_TOKEN" | sha256sum > {folder}/token.$$
fi
PYTHONPATH={engine} exec {python} -S -B "$@"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    with ssh_nodes(tmp_path_factory.mktemp("secrets"), nodes=2) as demo:
        yield demo


@pytest.fixture(scope="module")
def server(cluster: LocalNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    (home / "known_hosts").write_text((cluster.folder / "known_hosts").read_text())
    store = Store(home / "megaboard.db")
    store.set_draft(dump_mapping(job(cluster)))
    store.close()
    server = Server(home, SSH_AUTH_SOCK="")
    server.start()
    yield server
    server.end()


def job(cluster: LocalNodes) -> dict[str, Any]:
    """Return a job of the stand-in engine whose nodes accept only a protected key."""
    folder = cluster.folder
    key = folder / "protected"
    # One round of the key's derivation: the test is not about that, and sixteen take a second.
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-a", "1", "-N", PASSPHRASE, "-f", key], check=True)
    (folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    mapping = stand_in_job(folder, PYTHON.format(engine=ENGINE, python=sys.executable, folder=folder))
    machines = cluster.cluster_mapping(f"{folder}/python")
    machines["hosts"] = [{**host, "identity_file": str(key)} for host in machines["hosts"]]
    return {
        **mapping,
        "name": "secretive",
        "cluster": machines,
        "environment": {"TRAINER_STEPS": "100000", "TRAINER_STEP_S": "0.2"},
    }


def has_canary(data: bytes) -> bool:
    """Return whether the data has a canary, as it is or as JSON or HTML may write it."""
    pieces = (TOKEN, "canary horse", "battery' $taple", "T0ken")
    return any(piece.encode() in data for piece in pieces)


def holding(folder: Path) -> list[str]:
    """Return the files below a folder that contain a canary."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and has_canary(path.read_bytes())]


def command_lines() -> list[str]:
    lines = [_read(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [line.decode(errors="replace") for line in [*lines, _ps()] if has_canary(line)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # It has ended.
        return b""


def _ps() -> bytes:
    return subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, check=False).stdout


def test_a_token_and_a_passphrase_are_typed_once_and_found_nowhere(server: Server, cluster: LocalNodes) -> None:
    observed: list[tuple[str, bytes]] = []

    def look(response: Any) -> None:
        try:
            observed.append((response.url, response.body()))
        except Exception:  # The stream is still open, or a redirect has no body.
            observed.append((response.url, b""))

    with logged_in(server) as page:
        page.on("requestfinished", lambda request: look(request.response()))
        go(page, server, "launch")
        keep_token(page)
        page.click('[data-act="check"]')
        box = page.locator('#place-launch .mb-secret-form input[type="password"]').first
        box.fill("not the passphrase")
        box.press("Enter")
        expect(page.locator("#place-launch")).to_contain_text("does not open")
        box = page.locator('#place-launch .mb-secret-form input[type="password"]').first
        box.fill(PASSPHRASE)
        box.press("Enter")
        expect(page.locator('[data-act="launch"]')).to_be_enabled()
        page.click('[data-act="launch"]')
        page.wait_for_function("() => location.hash.startsWith('#runs/')")
        run = page.evaluate("() => decodeURIComponent(location.hash).slice(6)")
        try:
            folder = cluster.folder
            wait_for(lambda: len([path for path in folder.glob("token.*") if path.stat().st_size]) == 2)
            values = {path.read_text().split()[0] for path in folder.glob("token.*")}
            assert values == {hashlib.sha256(TOKEN.encode()).hexdigest()}, "both ranks have the token"
            assert command_lines() == []
            written = [path for path in (folder / "run").rglob("*") if path.is_file()]
            wait_for(lambda: not any(has_canary(path.read_bytes()) for path in written))
            assert not list((folder / "run").rglob("secrets.json"))
            wait_for(lambda: "my token is ****" in shown_log(server, run))
            page.wait_for_function("() => document.body.innerText.includes('secretive')")
            assert not has_canary(page.content().encode())
            assert not has_canary(fetched(page, "/api/archive"))
            assert json.loads(fetched(page, "/api/secrets"))["names"] == ["HF_TOKEN"]
            stored = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
            assert not has_canary(page.evaluate(stored).encode())
            assert not has_canary(str(page.context.storage_state(indexed_db=True)).encode())
        finally:
            stopped = subprocess.run(
                [sys.executable, "-m", "app.main", "--lang", "en", "stop", run],
                env={**server.environment, "SSH_ASKPASS": ""}, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
    assert len(observed) > 20
    assert [url for url, body in observed if has_canary(body)] == []
    assert holding(server.home) == []
    assert not has_canary((stopped.stdout + stopped.stderr).encode())


def keep_token(page: Any) -> None:
    """Type the token, after one that is refused."""
    locator = page.locator("#place-secrets")
    name, value = locator.locator("input").nth(0), locator.locator('input[type="password"]')
    name.fill("HF_TOKEN")
    value.fill("short")
    value.press("Enter")
    expect(locator).to_contain_text("at least 8 characters")
    value.fill(TOKEN)
    value.press("Enter")
    expect(locator.locator("code")).to_have_text("HF_TOKEN")
    expect(name).to_have_value("")
    expect(value).to_have_value("")


def shown_log(server: Server, run: str) -> str:
    logs = [sys.executable, "-m", "app.main", "--lang", "en", "logs", run, "--file", "out.log"]
    return subprocess.run(logs, env=server.environment, capture_output=True, text=True, check=False).stdout


def test_a_server_that_starts_again_knows_no_secret(server: Server) -> None:
    assert known_secrets(server) == ["HF_TOKEN"]
    server.end()
    server.start()
    assert known_secrets(server) == []


def known_secrets(server: Server) -> list[str]:
    """Return the names of the server's secrets, after a log-in without a browser."""
    base = {"host": server.url.removeprefix("http://"), "origin": server.url}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=base, timeout=60) as client:
        cookie = client.post("/login", data={"password": PASSWORD}).headers["set-cookie"].split(";")[0]
        names: list[str] = client.get("/api/secrets", headers={"cookie": cookie}).json()["names"]
        return names
