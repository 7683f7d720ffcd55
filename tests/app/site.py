"""The real application with a tiny page on it, for tests of what stands in front of the page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from app.web.audit import Audit
from app.web.identity import Identity
from app.web.passwords import PasswordHash
from app.web.server import create_app

PASSWORD = "correct-horse-battery"
HASH = PasswordHash.of(PASSWORD, cost=2)
"""Cheap to check: most tests log in, and only those of app/web/passwords.py ask what a guess costs."""
IDENTITY = Identity(host="mb-k3v7q2m4x8p5t6w9.localhost", salt=b"s" * 16, secret=b"k" * 32)
OWN = f"http://{IDENTITY.host}:7860"
PLAIN = "http://127.0.0.1:7860"


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def tiny_page() -> gr.Blocks:
    with gr.Blocks() as page:
        box = gr.Textbox()
        box.submit(lambda text: text.upper(), box, box, api_name="shout")
    return page


def site(home: Path, clock: Clock, pages: Mapping[str, gr.Blocks], **more: Any) -> ASGIApp:
    """The gated application with these pages by language."""
    more = {"password": HASH, "identity": IDENTITY, **more}
    return create_app(pages, home=home, audit=Audit(home, clock), clock=clock, **more)


def browser(app: ASGIApp, base: str = OWN, address: str = "127.0.0.1") -> TestClient:
    """A client that keeps cookies and says its Origin, as a browser does with a POST."""
    one = TestClient(app, base_url=base, client=(address, 50000), follow_redirects=False)
    one.headers["origin"] = base
    return one


def log_in(client: TestClient, password: str = PASSWORD) -> httpx.Response:
    return client.post("/login", data={"password": password})
