"""Another program on the same machine, in real Chromium. It gets no cookie of ours.

Browsers send the cookies of 127.0.0.1 to all of its ports, but ours belong to the server's own name.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.tiny_app import IDENTITY, PASSWORD
from tests.ui.browser import needs_chromium
from tools.browser import END_S, READY_S, chromium

pytestmark = [pytest.mark.ui, needs_chromium]


class Collector:
    """Another tool on 127.0.0.1 that stores the cookies which browsers send to it."""

    def __init__(self) -> None:
        collected = self.collected = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                collected.append(self.headers.get("cookie", ""))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    item = Collector()
    yield item
    item.end()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of our server."""
    home: Path = tmp_path_factory.mktemp("home")
    argv = [sys.executable, "-m", "tests.app.tiny_server", str(home)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout
        yield int(process.stdout.readline())
        process.terminate()
        process.wait(END_S)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(locale="en-US")
    context.set_default_timeout(1000 * READY_S)
    yield context.new_page()
    context.close()


def log_in(page: Any, address: str) -> None:
    page.goto(address)
    page.fill("#password", PASSWORD)
    page.press("#password", "Enter")
    page.wait_for_url(f"http://{IDENTITY.host}:*/en/")
    page.wait_for_selector("textarea")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_log_in_at_a_shared_name_ends_at_the_servers_own_and_no_other_port_gets_a_cookie(
    page: Any, port: int, collector: Collector, name: str
) -> None:
    log_in(page, f"http://{name}:{port}/")
    page.reload()
    page.wait_for_selector("textarea")
    cookies = page.context.cookies()
    assert {cookie["domain"] for cookie in cookies if "megaboard" in cookie["name"]} == {IDENTITY.host}
    page.context.add_cookies([{"name": "control", "value": "1", "domain": name, "path": "/"}])
    page.goto(f"http://{name}:{collector.port}/")
    assert collector.collected[0] == "control=1", "what another program gets is what that name has, and nothing of ours"
    replayed = {"cookie": collector.collected[0], "host": f"{IDENTITY.host}:{port}"}
    assert httpx.get(f"http://127.0.0.1:{port}/en/", headers=replayed).status_code == 401


def test_a_session_that_is_replayed_at_a_shared_name_is_refused(page: Any, port: int) -> None:
    log_in(page, f"http://{IDENTITY.host}:{port}/")
    cookie = "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in page.context.cookies())
    for host, status in ((f"{IDENTITY.host}:{port}", 200), (f"127.0.0.1:{port}", 401), (f"localhost:{port}", 401)):
        response = httpx.get(f"http://127.0.0.1:{port}/en/", headers={"cookie": cookie, "host": host})
        assert response.status_code == status, host


def test_a_page_of_another_program_that_leads_to_the_log_in_learns_no_name(
    page: Any, port: int, collector: Collector
) -> None:
    log_in(page, f"http://{IDENTITY.host}:{port}/")
    page.goto(f"http://127.0.0.1:{collector.port}/")
    result = page.evaluate(
        """async (address) => {
            const answers = [];
            for (const mode of ['cors', 'no-cors']) {
                const asked = fetch(address, { mode, credentials: 'include' });
                answers.push(await asked.then((answer) => `${answer.url} ${answer.type}`, String));
            }
            const image = new Image();
            image.src = address;
            await image.decode().catch(() => null);
            return [...answers, ...performance.getEntriesByType('resource').map((entry) => entry.name)].join(' ');
        }""",
        f"http://127.0.0.1:{port}/",
    )
    assert IDENTITY.host not in result
