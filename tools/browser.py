"""Chromium, and servers of the page in processes of their own. Tests and benchmarks use the page as a user does."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.web.identity import load_identity

CHECKOUT = Path(__file__).parents[1]
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    # The pages of one site share a process, so a new page does not compile Gradio's scripts again.
    "--process-per-site",
]
PASSWORD = "correct-horse-battery"  # noqa: S105 - of servers that live as long as a test
VIEWPORT = {"width": 1280, "height": 900}
READY_S, END_S = 180, 120
PORTS = range(20000, 29000)
"""Ports that Linux gives to no connection, so the port of a restarted server is free."""


class Server:
    """A server of the page on its own port, which can be stopped, killed and restarted."""

    call: tuple[str, ...] = ("serve",)
    program: tuple[str, ...] = (sys.executable, "-m", "app.main")
    ready_s: float = READY_S

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        self.log = home / "server.log"
        self.environment = {**os.environ, "MEGABOARD_HOME": str(home), **environment}
        self.port = next(filter(_is_free, random.sample(PORTS, len(PORTS))))

    @property
    def url(self) -> str:
        """Return the page's address. Browsers resolve its name; other programs connect to 127.0.0.1 with the name as
        Host."""
        home = self.home / "demo" if "demo" in self.call else self.home
        return f"http://{load_identity(home).host}:{self.port}"

    def command(self) -> list[str]:
        """Return the command that serves the page on the port with PASSWORD."""
        password_file = self.home / "password"
        password_file.write_text(PASSWORD)
        password_file.chmod(0o600)
        return [*self.program, *self.call, "--port", str(self.port), "--password-file", str(password_file)]

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command(), stdout=out, stderr=out, env=self.environment, cwd=CHECKOUT)
        deadline = time.monotonic() + self.ready_s
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/login")
                return
            except httpx.TransportError:
                time.sleep(0.1)
        self.kill()
        raise AssertionError(self.log.read_text())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=END_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def served(home: Path, **environment: str) -> Iterator[Server]:
    """Run `megaboard serve` with its own home and further environment variables."""
    server = Server(home, **environment)
    server.start()
    try:
        yield server
    finally:
        server.end()


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Chromium, and close it with all its pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def without_faults(page: Any) -> Iterator[Any]:
    """Open a page in which no script may fail and no dialog may open."""
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"a script ran: {dialog.message}"))
    yield page
    if faults:
        raise AssertionError(faults)


@contextmanager
def logged_in(server: Server, browser: Any = None) -> Iterator[Any]:
    """Open a page of the server and log in, in `browser` or in a new one. No script in it may fail."""
    if browser is None:
        with chromium() as own, logged_in(server, own) as page:
            yield page
        return
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(180_000)  # This holds for every page in this context.
    page = context.new_page()
    with without_faults(page):
        log_in(page, server)
        yield page


def log_in(page: Any, server: Server, lang: str = "en") -> None:
    """Type the password and log in.

    It waits for the page behind the log-in, because Chromium may never close a page whose log-in is still running
    (5 times in 60 on two cores).
    """
    if "/login" not in page.url:
        page.goto(f"{server.url}/login?lang={lang}")
    page.fill("#password", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/login" not in url)


def fetched(page: Any, path: str) -> bytes:
    """Return the server's answer to a request of the page. Only the browser resolves the server's own host name."""
    script = """async (path) => {
        const answer = await fetch(path);
        if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
        return Array.from(new Uint8Array(await answer.arrayBuffer()));
    }"""
    return bytes(page.evaluate(script, path))
