"""Authentication of every request, in one ASGI middleware. Gradio's own log-in leaves some of its routes open.

A request must pass these checks in order: the Host is one of this server, the request comes from this server's own
page, the body is small, and a session is open. Only the log-in page with its files and the logo need no session, and
Prometheus reads /metrics with a token of its own. At a host name that other programs share, such as localhost, no
session is accepted (AccessPolicy.plain).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.text import LANGUAGES
from app.web.scrape_token import METRICS_PATH, ScrapeToken
from app.web.sessions import Sessions

PUBLIC_PATHS = frozenset({"/login", "/enter", "/static/web/login.css", "/static/web/login.js", "/static/logo.svg"})
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
BODY_LIMIT_BYTES = 4 << 20
TLS_AGE_S = 30 * 24 * 3600
"""How long a browser uses only TLS. This applies to all ports of the host name, so it is not longer."""

# Gradio's routes that fetch any URL for the caller. They would circumvent the page policy.
_FETCHES = re.compile(r"/gradio_api/(?:proxy=|file=(?!/[^/]))")

# Gradio needs inline scripts and `new Function`. Everything else comes from this server only, so that the page works
# offline and an injected script cannot send data elsewhere.
PAGE_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "frame-src 'none'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)

# Not `no-referrer`: with it, browsers send `Origin: null` with a form, which AuthMiddleware refuses.
_FIXED_HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_CACHEABLE = ("text/css", "text/javascript", "application/javascript", "font/", "image/")


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessPolicy:
    """The host names and cookies with which this server can be used."""

    own: str
    """The host name that only this server uses (identity.py)."""

    hosts: frozenset[str]
    """Lower-case names at which sessions are accepted, with `:port` if only that port is. A name without a port allows
    any, because `ssh -L` gives the browser another port. The Origin check then compares ports."""

    plain: frozenset[str] = frozenset()
    """Names that all programs of the machine share, such as localhost. Browsers send their cookies to all ports. So
    these names serve only the log-in page, which sends the browser to the server's own name."""

    cookie: str
    """The session cookie's name. Browsers keep cookies per host name, not per port."""

    scrape_token: ScrapeToken | None = None
    """The token for METRICS_PATH, which needs no session then. None: nobody can read metrics."""

    tls: bool = False
    """Whether browsers connect with TLS. Then the cookie is Secure and an Origin must be https."""

    def allows(self, host: str) -> bool:
        """Return whether a Host header names this server."""
        return _is_among(self.hosts | self.plain, host)

    def is_plain(self, host: str) -> bool:
        """Return whether a Host header is a name that other programs share. No session is accepted there."""
        return not _is_among(self.hosts, host)

    def is_secret(self, host: str) -> bool:
        """Return whether a Host header is the server's own host name, which only the operator knows."""
        return _is_among(frozenset({self.own}), host)

    def own_address(self, host: str) -> str:
        """Return the URL of the server's own host name, with the port of the Host header."""
        port = host[host.rindex(":") :] if re.search(r":\d+$", host) else ""
        return f"{'https' if self.tls else 'http'}://{self.own}{port}"

    def is_own(self, origin: str, host: str) -> bool:
        """Return whether an Origin header is a page that the same Host served."""
        parts = urlsplit(origin)
        schemes = ("https",) if self.tls else ("http", "https")
        return parts.scheme in schemes and parts.netloc.lower() == host.lower()

    def may_scrape(self, path: str, authorization: str | None) -> bool:
        """Return whether a request reads the metrics with the right token."""
        return path == METRICS_PATH and self.scrape_token is not None and self.scrape_token.matches(authorization)

    def cookie_header(self, token: str, age_s: int, name: str = "") -> str:
        """Return the Set-Cookie value of the session cookie, or of the cookie `name`. An age of 0 deletes it."""
        secure = "; Secure" if self.tls else ""
        return f"{name or self.cookie}={token}; Max-Age={age_s}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def keeps_tls(self, host: str) -> bool:
        """Return whether to send HSTS. With it, the browser uses only TLS for this name, on every port."""
        name = host.lower().rpartition(":")[0] or host.lower()
        return self.tls and not name.endswith("localhost")


def access_policy(
    own: str, hosts: Iterable[str], *, cookie: str, tls: bool, scrape_token: ScrapeToken | None = None
) -> AccessPolicy:
    """Return the policy for the operator's host names and the server's own. Other loopback names are plain."""
    named = frozenset(name.lower() for name in hosts) | {own}
    plain = LOOPBACK_NAMES - named
    return AccessPolicy(own=own, hosts=named, plain=plain, cookie=cookie, tls=tls, scrape_token=scrape_token)


def _is_among(names: frozenset[str], host: str) -> bool:
    host = host.lower()
    name, _, port = host.rpartition(":")
    return host in names or (port.isdecimal() and name in names)


class AuthMiddleware:
    """Refuses every request that fails a check of this module."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, sessions: Sessions) -> None:
        self._app = app
        self._policy = policy
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        is_refused = refusal is not None or self._policy.is_plain(headers["host"])
        token = "" if is_refused else HTTPConnection(scope).cookies.get(self._policy.cookie, "")
        has_session = bool(token) and self._sessions.use(token)
        is_open = scope["path"] in PUBLIC_PATHS or self._policy.may_scrape(scope["path"], headers.get("authorization"))
        if refusal is None and not has_session and not is_open:
            refusal = _login_required(scope, headers)
        if refusal is None and _FETCHES.search(scope["path"]):
            refusal = JSONResponse({"code": "not_served"}, 403)
        if refusal is not None:
            await _refuse(refusal, scope, receive, self._with_headers(send, headers, None))
            return
        if has_session:
            scope.setdefault("state", {})["operator"] = "operator"
        await _run_limited(self._app, scope, receive, self._with_headers(send, headers, token if has_session else None))

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._policy.allows(hosts[0]):
            return JSONResponse({"code": "host_not_allowed"}, 400)
        if not self._is_from_own_page(scope, headers, hosts[0]):
            return JSONResponse({"code": "foreign_origin"}, 403)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_LIMIT_BYTES:
            return JSONResponse({"code": "body_too_large"}, 413)
        return None

    def _is_from_own_page(self, scope: Scope, headers: Headers, host: str) -> bool:
        origins = headers.getlist("origin")
        site = headers.get("sec-fetch-site")
        if any(not self._policy.is_own(origin, host) for origin in origins):
            return False
        if site in ("cross-site", "same-site"):
            # A link of another site may open the page, without the strict cookie. Other sites may load nothing else.
            return scope.get("method") in ("GET", "HEAD") and headers.get("sec-fetch-dest") == "document"
        is_safe = scope["type"] == "http" and scope["method"] in _SAFE_METHODS
        # Every browser sends Origin with a POST and a WebSocket. Other clients are not supported.
        return is_safe or bool(origins) or site == "same-origin"

    def _with_headers(self, send: Send, request: Headers, token: str | None) -> Send:
        keeps_tls = self._policy.keeps_tls(request.get("host", "localhost"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _FIXED_HEADERS.items():
                    headers.setdefault(name, value)
                if keeps_tls:
                    headers["strict-transport-security"] = f"max-age={TLS_AGE_S}"
                if not headers.get("content-type", "").startswith(_CACHEABLE):
                    headers["cache-control"] = "no-store"
                age_s = self._sessions.cookie_age_s(token) if token else None
                if token and age_s and "set-cookie" not in headers:
                    headers.append("set-cookie", self._policy.cookie_header(token, age_s))
            await send(message)

        return send_with_headers


class _BodyTooLarge(Exception):
    pass


async def _run_limited(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the app. Refuse a body that exceeds the limit, even if its Content-Length is smaller."""
    received = 0
    has_started = False

    async def counted_receive() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > BODY_LIMIT_BYTES:
            raise _BodyTooLarge
        return message

    async def noted_send(message: Message) -> None:
        nonlocal has_started
        has_started = True
        await send(message)

    try:
        await app(scope, counted_receive, noted_send)
    except _BodyTooLarge:
        if has_started:
            raise
        await JSONResponse({"code": "body_too_large"}, 413)(scope, receive, send)


def _login_required(scope: Scope, headers: Headers) -> Response:
    is_page = scope.get("method") in ("GET", "HEAD") and headers.get("sec-fetch-dest", "document") == "document"
    if not is_page or "text/html" not in headers.get("accept", ""):
        return JSONResponse({"code": "not_logged_in"}, 401)
    languages = [scope["path"].split("/")[1], HTTPConnection(scope).query_params.get("lang")]
    lang = next((name for name in languages if name in LANGUAGES), None)
    return RedirectResponse(f"/login?lang={lang}" if lang else "/login", 303)


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        await response(scope, receive, send)


def operator_of(connection: HTTPConnection) -> str | None:
    """Return the operator whom AuthMiddleware accepted. Gradio also asks for it, so a mount without it stays closed."""
    return getattr(connection.state, "operator", None)
