"""The gate: one ASGI layer in front of every route, because Gradio's own log-in leaves some of its routes open.

In order: the Host must be ours, the request must come from our own page, the body must be small, and a session
must be open. Only the log-in page, its style and script and the logo are reachable without one. At a host
name that other programs share, such as localhost, no session is accepted (AccessPolicy.plain).
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
from app.web.sessions import Sessions

PUBLIC_PATHS = frozenset({"/login", "/enter", "/static/web/login.css", "/static/web/login.js", "/static/logo.svg"})
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
BODY_LIMIT_BYTES = 4 << 20
TLS_AGE_S = 30 * 24 * 3600
"""How long a browser remembers to come by TLS alone. It holds for all ports of the name, so not for longer."""

# Gradio's own routes that fetch an address of the caller's choice: the way out that the page policy closes.
_FETCHES = re.compile(r"/gradio_api/(?:proxy=|file=(?!/[^/]))")

# Gradio builds its page with inline scripts and `new Function`; everything else is ours alone, so that the page
# works offline and a script that slipped in has nowhere to send what it reads.
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

# Not `no-referrer`: under it browsers send `Origin: null` with a form, which the gate refuses.
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
    """How this server may be reached."""

    own: str
    """The host name of this server alone (identity.py)."""

    hosts: frozenset[str]
    """Names in lower case at which one can be logged in, with `:port` where only that port is meant. A name without
    a port allows any, because `ssh -L` gives the browser another port; the Origin check then compares ports."""

    plain: frozenset[str] = frozenset()
    """Names that every program of the machine shares, such as localhost. Cookies of theirs would go to all ports, so
    that these names serve the log-in page alone; from there the browser is led to the server's own name."""

    cookie: str
    """The session cookie's name: browsers keep cookies per host name, not per port."""

    tls: bool = False
    """Whether the browser speaks TLS to us: then the cookie is Secure and an Origin must be https."""

    def allows(self, host: str) -> bool:
        """Whether a Host header names us."""
        return _is_among(self.hosts | self.plain, host)

    def is_plain(self, host: str) -> bool:
        """Whether a Host header is a name that other programs share; no session is accepted there."""
        return not _is_among(self.hosts, host)

    def is_secret(self, host: str) -> bool:
        """Whether the request uses the server's own host name, which only the operator knows."""
        return _is_among(frozenset({self.own}), host)

    def own_address(self, host: str) -> str:
        """The server's own host name, with the port of the Host header."""
        port = host[host.rindex(":") :] if re.search(r":\d+$", host) else ""
        return f"{'https' if self.tls else 'http'}://{self.own}{port}"

    def is_own(self, origin: str, host: str) -> bool:
        """Whether an Origin header is the page that this same Host served."""
        parts = urlsplit(origin)
        schemes = ("https",) if self.tls else ("http", "https")
        return parts.scheme in schemes and parts.netloc.lower() == host.lower()

    def cookie_header(self, token: str, age_s: int, name: str = "") -> str:
        """The Set-Cookie value that sets the session cookie (or another one); an age of 0 deletes it."""
        secure = "; Secure" if self.tls else ""
        return f"{name or self.cookie}={token}; Max-Age={age_s}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def keeps_tls(self, host: str) -> bool:
        """Whether to send HSTS: the browser then uses only TLS for this name, on every port."""
        name = host.lower().rpartition(":")[0] or host.lower()
        return self.tls and not name.endswith("localhost")


def door_of(own: str, hosts: Iterable[str], *, cookie: str, tls: bool) -> AccessPolicy:
    """The names chosen by the operator, and the server's own. Other loopback names lead to the server's own name."""
    named = frozenset(name.lower() for name in hosts) | {own}
    return AccessPolicy(own=own, hosts=named, plain=LOOPBACK_NAMES - named, cookie=cookie, tls=tls)


def _is_among(names: frozenset[str], host: str) -> bool:
    host = host.lower()
    name, _, port = host.rpartition(":")
    return host in names or (port.isdecimal() and name in names)


class AuthMiddleware:
    """Refuses what is not our own page with an open session; see the module's first lines for the order."""

    def __init__(self, app: ASGIApp, door: AccessPolicy, sessions: Sessions) -> None:
        self._app = app
        self._door = door
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refuse_stranger(scope, headers)
        is_shut = refusal is not None or self._door.is_plain(headers["host"])
        token = "" if is_shut else HTTPConnection(scope).cookies.get(self._door.cookie, "")
        is_open = bool(token) and self._sessions.use(token)
        if refusal is None and not is_open and scope["path"] not in PUBLIC_PATHS:
            refusal = _ask_to_log_in(scope, headers)
        if refusal is None and _FETCHES.search(scope["path"]):
            refusal = JSONResponse({"code": "not_served"}, 403)
        if refusal is not None:
            await _refuse(refusal, scope, receive, self._hardened(send, headers, None))
            return
        if is_open:
            scope.setdefault("state", {})["operator"] = "operator"
        await _limited(self._app, scope, receive, self._hardened(send, headers, token if is_open else None))

    def _refuse_stranger(self, scope: Scope, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._door.allows(hosts[0]):
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
        if any(not self._door.is_own(origin, host) for origin in origins):
            return False
        if site in ("cross-site", "same-site"):
            # A link from elsewhere may open the page (the strict cookie stays behind); nothing else may load it.
            return scope.get("method") in ("GET", "HEAD") and headers.get("sec-fetch-dest") == "document"
        is_safe = scope["type"] == "http" and scope["method"] in _SAFE_METHODS
        # Every browser sends Origin with a POST and a WebSocket, and no other client has business here.
        return is_safe or bool(origins) or site == "same-origin"

    def _hardened(self, send: Send, asked: Headers, token: str | None) -> Send:
        keeps_tls = self._door.keeps_tls(asked.get("host", "localhost"))

        async def hardened(message: Message) -> None:
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
                    headers.append("set-cookie", self._door.cookie_header(token, age_s))
            await send(message)

        return hardened


class _BodyTooLarge(Exception):
    pass


async def _limited(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the app, ending a body that grows past the limit whatever its Content-Length said."""
    seen = 0
    has_started = False

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_LIMIT_BYTES:
            raise _BodyTooLarge
        return message

    async def noted(message: Message) -> None:
        nonlocal has_started
        has_started = True
        await send(message)

    try:
        await app(scope, counted, noted)
    except _BodyTooLarge:
        if has_started:
            raise
        await JSONResponse({"code": "body_too_large"}, 413)(scope, receive, send)


def _ask_to_log_in(scope: Scope, headers: Headers) -> Response:
    is_page = scope.get("method") in ("GET", "HEAD") and headers.get("sec-fetch-dest", "document") == "document"
    if not is_page or "text/html" not in headers.get("accept", ""):
        return JSONResponse({"code": "not_logged_in"}, 401)
    asked = [scope["path"].split("/")[1], HTTPConnection(scope).query_params.get("lang")]
    lang = next((one for one in asked if one in LANGUAGES), None)
    return RedirectResponse(f"/login?lang={lang}" if lang else "/login", 303)


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        await response(scope, receive, send)


def operator_of(connection: HTTPConnection) -> str | None:
    """Who the gate let in; Gradio asks it too, so that a mount without the gate stays shut."""
    return getattr(connection.state, "operator", None)
