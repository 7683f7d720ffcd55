"""The real application with a tiny page, for tests of the log-in and of the limits before the page."""

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
from tests.clock import Clock

PASSWORD = "correct-horse-battery"
HASH = PasswordHash.of(PASSWORD, cost=2)
"""A hash that is cheap to check. Most tests log in; only those of app/web/passwords.py test the cost of a guess."""
IDENTITY = Identity(host="mb-k3v7q2m4x8p5t6w9.localhost", salt=b"s" * 16, secret=b"k" * 32)
OWN = f"http://{IDENTITY.host}:7860"
PLAIN = "http://127.0.0.1:7860"


def tiny_page() -> gr.Blocks:
    with gr.Blocks() as page:
        box = gr.Textbox()
        box.submit(lambda text: text.upper(), box, box, api_name="shout")
    return page


def tiny_app(home: Path, clock: Clock, pages: Mapping[str, gr.Blocks], **more: Any) -> ASGIApp:
    """Return the application with its log-in and these pages by language."""
    more = {"password": HASH, "identity": IDENTITY, **more}
    return create_app(pages, home=home, audit=Audit(home, clock), clock=clock, **more)


def browser(app: ASGIApp, base: str = OWN, address: str = "127.0.0.1") -> TestClient:
    """Return a client that keeps cookies and sends its Origin, as a browser does with a POST."""
    client = TestClient(app, base_url=base, client=(address, 50000), follow_redirects=False)
    client.headers["origin"] = base
    return client


def log_in(client: TestClient, password: str = PASSWORD) -> httpx.Response:
    return client.post("/login", data={"password": password})
