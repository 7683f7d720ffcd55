"""The web server: uvicorn with one FastAPI application, behind AuthMiddleware. Each language has its own page.

This module imports Gradio. Call `app.web.gradio_settings.prepare_gradio` first.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import gradio as gr
import plotly
import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp

from app.text import LANGUAGES
from app.web.audit import Audit
from app.web.binding import Binding
from app.web.connection_limits import Connections, LimitedListener, Limits
from app.web.descriptors import connections_for, count_open, raise_limit
from app.web.device_cookie import DeviceCookies
from app.web.identity import Identity, load_identity
from app.web.log_limit import limit_server_logs
from app.web.login import LANGUAGE_COOKIE, LogIn, language_of, routes
from app.web.login_throttle import PasswordChecks, Throttle
from app.web.passwords import PasswordHash
from app.web.scrape_token import ScrapeToken
from app.web.security import AccessPolicy, AuthMiddleware, access_policy, operator_of
from app.web.sessions import Sessions, Tickets
from app.web.steady_clock import steady_s
from app.web.theme import THEME, WithHead, version
from app.web.timed_protocol import TimedProtocol
from backend.job.data_folder import data_folder

_UPLOAD_LIMIT = "1mb"
_CACHED_FOREVER = {"cache-control": "private, max-age=31536000, immutable"}
_END_STREAMS_S = 3
_QUEUE_POLL_S = 0.05
"""Poll interval of Gradio's queue, equal to its default on Windows. An interval of 1 ms took 6% of a core a page."""


def create_app(
    pages: Mapping[str, gr.Blocks],
    *,
    home: Path,
    password: PasswordHash,
    audit: Audit,
    clock: Callable[[], float] = steady_s,
    binding: Binding | None = None,
    identity: Identity | None = None,
    routers: Iterable[APIRouter] = (),
    scrape_token: ScrapeToken | None = None,
) -> ASGIApp:
    """Return the whole application: the pages at /<language> and the routers, behind AuthMiddleware.

    `clock` must be monotonic. Sessions and the waits after wrong passwords use it. `identity` defaults to that of the
    home folder. With `scrape_token`, Prometheus can read the metrics.
    """
    binding = binding or Binding()
    identity = identity or load_identity(home)
    policy = access_policy(
        identity.host,
        binding.names,
        cookie=f"megaboard_{password.name}",
        tls=binding.certificate is not None,
        scrape_token=scrape_token,
    )
    sessions = Sessions(clock)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(routes(_log_in(policy, identity, sessions, password, audit, clock)))
    for router in routers:
        app.include_router(router)
    _serve_files(app)
    _choose_language(app)
    for lang, blocks in pages.items():
        _mount(app, blocks, f"/{lang}", home)
    return AuthMiddleware(WithHead(app, {f"/{lang}/": lang for lang in pages}), policy, sessions)


def _log_in(
    policy: AccessPolicy,
    identity: Identity,
    sessions: Sessions,
    password: PasswordHash,
    audit: Audit,
    clock: Callable[[], float],
) -> LogIn:
    return LogIn(
        policy=policy,
        sessions=sessions,
        tickets=Tickets(clock),
        checks=PasswordChecks(password),
        throttle=Throttle(clock),
        devices=DeviceCookies(identity.device_key(password), f"megaboard_device_{password.name}"),
        audit=audit,
    )


def serve(app: ASGIApp, binding: Binding, listener: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Answer requests until SIGINT or SIGTERM, then return. Open streams get a few seconds.

    The limit on connections leaves enough file descriptors for nodes and the database. `ready` is called when a signal
    can end the server, before the first response.
    """
    limits = Limits(most=connections_for(raise_limit(), count_open()))
    connections = Connections(limits)
    limit_server_logs()
    config = uvicorn.Config(
        app,
        # uvicorn also accepts a factory.
        http=cast(type[asyncio.Protocol], partial(TimedProtocol, connections=connections)),
        loop="asyncio",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        log_config=None,
        timeout_graceful_shutdown=_END_STREAMS_S,
        ssl_certfile=binding.certificate,
        ssl_keyfile=binding.key,
    )
    server = uvicorn.Server(config)

    def end(*_: object) -> None:
        """Handle a signal before uvicorn does, and the signals that uvicorn raises again at its end."""
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    ready()
    server.run(sockets=[LimitedListener(listener, connections)])


def _mount(app: FastAPI, blocks: gr.Blocks, path: str, home: Path) -> None:
    gr.mount_gradio_app(
        app,
        blocks,
        path,
        auth_dependency=operator_of,
        run_history=False,
        footer_links=[],
        enable_monitoring=False,
        show_error=False,
        mcp_server=False,
        ssr_mode=False,
        pwa=False,
        allowed_paths=[],
        # No component of the page serves a file, so Gradio's own folder in the home folder is blocked, too.
        blocked_paths=[str(Path("~/.ssh").expanduser()), str(home)],
        max_file_size=_UPLOAD_LIMIT,
        theme=THEME,
    )
    blocks._queue.sleep_when_free = _QUEUE_POLL_S


def _serve_files(app: FastAPI) -> None:
    plotly_script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"

    @app.get(f"/static/{version()}/plotly.min.js")
    def plotly_js() -> FileResponse:
        return FileResponse(plotly_script, media_type="text/javascript", headers=_CACHED_FOREVER)

    @app.get("/favicon.ico")
    def icon() -> FileResponse:
        return FileResponse(data_folder("static") / "logo.svg", media_type="image/svg+xml")

    app.mount(f"/static/{version()}", _VersionedFiles(directory=data_folder("static")))
    app.mount("/static", StaticFiles(directory=data_folder("static")))


class _VersionedFiles(StaticFiles):
    """Files with a version in their URL. Browsers cache them forever."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_CACHED_FOREVER)
        return response


def _choose_language(app: FastAPI) -> None:
    @app.get("/")
    def start(request: Request) -> RedirectResponse:
        lang = language_of(request)
        response = RedirectResponse(f"/{lang}/", 303)
        if request.query_params.get("lang") in LANGUAGES:
            age_s = 365 * 24 * 3600
            response.set_cookie(LANGUAGE_COOKIE, lang, max_age=age_s, path="/", samesite="strict", httponly=True)
        return response
