"""Access control at every route of the real application with Gradio mounted."""

import itertools
import re

import pytest
from starlette.routing import Mount
from starlette.websockets import WebSocketDisconnect

from app.services import Services
from app.web.binding import Binding
from app.web.security import BODY_LIMIT_BYTES, PUBLIC_PATHS, TLS_AGE_S, access_policy
from app.web.sessions import IDLE_S
from app.web.shell import build
from app.web.theme import version
from app.wizard.routes import routes
from tests.app.tiny_app import IDENTITY, OWN, PLAIN, browser, log_in, tiny_app, tiny_page
from tests.clock import Clock


@pytest.fixture(scope="module")
def clock():
    return Clock()


@pytest.fixture(scope="module")
def app(tmp_path_factory, clock):
    """Return the application with a tiny page in English, the real page in Chinese, and all other routes."""
    services = Services.open(tmp_path_factory.mktemp("home"))
    pages = {"en": tiny_page(), "zh": build("zh", services)}
    yield tiny_app(services.home, clock, pages, routers=[routes(services)])
    services.close()


@pytest.fixture(autouse=True)
def _quiet_while(clock):
    """Move the clock past the throttle's memory, so that wrong passwords of one test do not slow the next."""
    clock.now += 100_000


@pytest.fixture
def stranger(app):
    return browser(app)


@pytest.fixture
def operator(app):
    client = browser(app)
    assert log_in(client).status_code == 303
    return client


def every_route(app) -> list[tuple[str, str]]:
    """Return (method, path) of each route of the application and its mounts, with parameters filled in."""
    inner = app
    while not hasattr(inner, "routes"):
        inner = inner._app
    routes = sorted(set(_walk(inner.routes, "")))
    assert len(routes) > 100, "the walk must see Gradio's own routes"
    return routes


def _walk(routes, prefix):
    for route in routes:
        path = re.sub(r"\{[^}]*\}", "1", getattr(route, "path", ""))
        if isinstance(route, Mount):
            yield from _walk(route.routes, prefix + path)
            yield "GET", prefix + path + "/anything"
        elif getattr(route, "methods", None):
            yield from ((method, prefix + path) for method in route.methods)
        elif hasattr(route, "original_router"):
            yield from _walk(route.original_router.routes, prefix + route.include_context.prefix)
        else:
            raise AssertionError(f"a kind of route this walk does not know: {route!r}")


def test_only_the_log_in_page_answers_without_a_session(app, stranger):
    for method, path in every_route(app):
        answer = stranger.request(method, path)
        if path in PUBLIC_PATHS:
            assert answer.status_code in (200, 303, 401), (method, path)
        else:
            assert answer.status_code == 401, (method, path, answer.status_code)


def test_a_browser_without_a_session_is_sent_to_the_login_page(stranger):
    for path, target in (("/", "/login"), ("/zh/", "/login?lang=zh"), ("/?lang=zh", "/login?lang=zh")):
        answer = stranger.get(path, headers={"accept": "text/html"})
        assert (answer.status_code, answer.headers["location"]) == (303, target)


def test_no_route_answers_another_origin_even_with_a_session(app, operator):
    origins = itertools.cycle(("https://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:7860"))
    for (method, path), origin in zip(every_route(app), origins, strict=False):
        answer = operator.request(method, path, headers={"origin": origin})
        assert answer.status_code == 403, (method, path, origin)


def test_no_route_answers_another_host_even_with_a_session(app, operator):
    cookie = "; ".join(f"{name}={value}" for name, value in operator.cookies.items())
    for method, path in every_route(app):
        answer = operator.request(method, path, headers={"host": "evil.example:7860", "cookie": cookie})
        assert answer.status_code == 400, (method, path)


@pytest.mark.parametrize("host", ["127.0.0.1.evil.example", "localhost:", "localhost:x", "[::1", "evil@localhost", ""])
def test_a_host_similar_to_the_servers_own_is_refused(operator, host):
    assert operator.get("/en/", headers={"host": host}).status_code == 400


def policy(*hosts):
    return access_policy(IDENTITY.host, hosts, cookie="c", tls=False)


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:8080", "LOCALHOST", "[::1]:7860"])
def test_loopback_names_are_allowed_on_any_port_for_ssh_tunnels_and_lead_to_the_servers_own_name(host):
    assert policy().allows(host)
    assert policy().is_plain(host)
    port = host.rpartition(":")[2] if host != "LOCALHOST" else ""
    assert policy().own_address(host) == f"http://{IDENTITY.host}" + (f":{port}" if port else "")


def test_a_loopback_name_that_the_operator_chose_accepts_sessions():
    assert not policy("localhost").is_plain("localhost:7860")
    assert policy("localhost").is_plain("127.0.0.1:7860")
    assert not policy("localhost:7860").is_plain("localhost:7860")


def test_a_host_with_a_port_is_allowed_only_on_that_port():
    item = policy("Train.lan:443")
    assert item.allows("train.lan:443")
    assert not item.allows("train.lan:80")
    assert not item.allows("train.lan")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_at_a_shared_name_no_session_is_accepted_and_no_cookie_is_set(app, operator, host):
    """Browsers send the cookies of a host name to all of its ports."""
    cookie = "; ".join(f"{name}={value}" for name, value in operator.cookies.items())
    for path in ("/en/", "/en/config", "/static/web/shell.js", "/api/secrets"):
        plain = browser(app, f"http://{host}:7860")
        assert plain.get(path, headers={"cookie": cookie}).status_code == 401, path
    answer = log_in(plain)
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers


def test_the_log_in_at_a_shared_name_leads_once_to_the_servers_own_name(app):
    plain = browser(app, PLAIN)
    address = re.search('url=([^"]+)"', log_in(plain).text.replace("&amp;", "&"))[1]
    assert address.startswith(f"{OWN}/enter?")
    assert plain.get(address.replace(OWN, "")).headers["location"] == "/login?lang=en", "not at the shared name"
    client = browser(app)
    del client.headers["origin"]
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    entered = client.get(address, headers=link)
    assert entered.status_code == 200
    assert client.get("/en/").status_code == 200
    late = browser(app)
    assert late.get(address).headers["location"] == "/login?lang=en"
    assert "set-cookie" not in late.get(address).headers


def test_no_response_without_the_password_contains_the_servers_own_name(app):
    """A program with that name could lead the browser to its own port at that name, and collect the cookies."""
    plain = browser(app, PLAIN)
    answers = [plain.request(method, path) for method, path in every_route(app)]
    answers += [log_in(plain, "wrong") for _ in range(5)]
    answers.append(plain.get("/", headers={"host": "evil.example"}))
    assert not [answer for answer in answers if IDENTITY.host in answer.text + str(answer.headers)]


def test_a_post_without_an_origin_is_refused(operator):
    del operator.headers["origin"]
    assert operator.post("/logout").status_code == 403
    assert operator.post("/logout", headers={"sec-fetch-site": "same-origin"}).status_code == 303


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_link_to_the_page_but_not_load_it(operator, site):
    del operator.headers["origin"]
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert operator.get("/en/", headers=link).status_code == 200
    for kind in ("iframe", "script", "image", "empty"):
        assert operator.get("/en/", headers={**link, "sec-fetch-dest": kind}).status_code == 403


def test_with_a_session_the_page_its_files_and_its_events_work(operator):
    page = operator.get("/zh/", headers={"accept": "text/html", "accept-encoding": "br"})
    assert page.status_code == 200
    assert 'lang="zh-CN"' in page.text
    base = f"/static/{version()}"
    addresses = re.findall(rf'(?:href|src)="({base}/[a-z_./]+)"', page.text)
    assert not [address for address in addresses if "login" in address]
    names = ("main.js", "web/shell.js", "plotly.min.js", "styles/megaboard.css")
    assert {f"{base}/{name}" for name in names} <= set(addresses)
    for address in addresses:
        answer = operator.get(address)
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] in (
            "text/css",
            "text/javascript",
            "application/javascript",
        )
        assert "immutable" in answer.headers["cache-control"]
    ran = operator.post("/en/gradio_api/run/shout", json={"data": ["loud"]})
    assert ran.json()["data"] == ["LOUD"]


def test_the_root_redirects_to_the_language_of_the_query_the_cookie_or_the_browser(operator):
    assert operator.get("/", headers={"accept-language": "fr, zh-TW;q=0.8, en"}).headers["location"] == "/zh/"
    assert operator.get("/", headers={"accept-language": "fr"}).headers["location"] == "/en/"
    assert operator.get("/?lang=zh").headers["location"] == "/zh/"
    assert operator.get("/", headers={"accept-language": "en"}).headers["location"] == "/zh/"
    assert operator.get("/?lang=../../evil").headers["location"] == "/zh/"


def test_gradio_routes_that_fetch_urls_are_refused(operator):
    for path in ("proxy=https://evil.example/", "file=https://evil.example/", "file=HTTPS:/evil", "file=//evil/x"):
        assert operator.get(f"/en/gradio_api/{path}").json() == {"code": "not_served"}


def test_gradio_serves_only_its_own_files(operator, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    assert operator.get(f"/en/gradio_api/file={secret}").status_code == 403


@pytest.mark.parametrize("name", ["megaboard.db-wal", "presets/mine.yaml", "password-1.txt", "gradio/a.txt"])
def test_gradio_serves_no_file_of_the_home_folder(tmp_path, clock, monkeypatch, name):
    """Even where Gradio takes the whole folder for its own temporary files."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("secret")
    client = browser(tiny_app(tmp_path, clock, {"en": tiny_page()}))
    log_in(client)
    assert client.get(f"/en/gradio_api/file={tmp_path / name}").status_code == 403


def test_disabled_gradio_pages_do_not_answer(operator):
    for path in ("/en/monitoring", "/en/monitoring/summary", "/en/gradio_api/runs", "/docs", "/openapi.json", "/redoc"):
        assert operator.get(path).status_code in (403, 404), path


def test_a_used_session_is_renewed_and_an_unused_one_ends(app, clock):
    client = browser(app)
    log_in(client)
    clock.now += IDLE_S - 1
    renewed = client.get("/en/").headers["set-cookie"]
    assert f"Max-Age={int(IDLE_S)}" in renewed
    assert "HttpOnly; SameSite=Strict" in renewed
    cookie = dict(client.cookies)
    clock.now += IDLE_S + 1
    assert client.get("/en/", headers=_as_header(cookie)).status_code == 401


def test_logging_out_makes_copies_of_the_cookie_invalid(operator):
    cookie = dict(operator.cookies)
    answer = operator.post("/logout?lang=zh")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?lang=zh")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert operator.get("/en/", headers=_as_header(cookie)).status_code == 401


def test_scripts_and_other_sites_cannot_use_the_session_cookie(stranger):
    session, device = log_in(stranger).headers.get_list("set-cookie")
    assert re.fullmatch(r"megaboard_[0-9a-f]{8}=[\w-]{43}; Max-Age=\d+; Path=/; HttpOnly; SameSite=Strict", session)
    assert re.fullmatch(r"megaboard_device_\w{8}=[0-9a-f.]{97}; Max-Age=\d+; Path=/; HttpOnly; SameSite=Strict", device)


def test_with_tls_the_cookie_is_secure_and_an_http_origin_is_refused(tmp_path):
    certificate = tmp_path / "cert.pem"
    binding = Binding(host="0.0.0.0", certificate=certificate, key=certificate, hosts=("train.lan",))
    app = tiny_app(tmp_path, Clock(), {"en": tiny_page()}, binding=binding)
    client = browser(app, "https://train.lan")
    cookies = log_in(client).headers.get_list("set-cookie")
    assert all(cookie.endswith("; Secure") for cookie in cookies)
    assert client.get("/en/", headers={"origin": "http://train.lan"}).status_code == 403


def test_with_tls_hsts_is_sent_except_at_names_of_this_machine(tmp_path):
    certificate = tmp_path / "cert.pem"
    binding = Binding(host="0.0.0.0", certificate=certificate, key=certificate, hosts=("train.lan",))
    app = tiny_app(tmp_path, Clock(), {}, binding=binding)
    header = "strict-transport-security"
    assert browser(app, "https://train.lan").get("/login").headers[header] == f"max-age={TLS_AGE_S}"
    for host in ("localhost", IDENTITY.host):
        assert header not in browser(app, f"https://{host}:7860").get("/login").headers
    plain = tiny_app(tmp_path, Clock(), {}, binding=Binding(hosts=("train.lan",)))
    assert header not in browser(plain, "http://train.lan").get("/login").headers


@pytest.mark.parametrize("path", ["/login", "/en/", "/en/config", "/static/web/shell.js", "/nothing"])
def test_every_response_has_the_security_headers(operator, path):
    headers = operator.get(path).headers
    assert headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers or headers["access-control-allow-origin"] == OWN


def test_refusals_have_the_security_headers_too(stranger):
    for answer in (stranger.get("/en/"), stranger.get("/en/", headers={"host": "evil"})):
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"


def test_browsers_do_not_cache_pages(operator):
    for path in ("/en/", "/en/config"):
        assert operator.get(path).headers["cache-control"] == "no-store"


def test_a_large_body_is_refused_with_or_without_content_length(operator):
    chunk = b"x" * (1 << 20)
    assert operator.post("/login", content=chunk * 5).status_code == 413
    answer = operator.post("/en/gradio_api/run/shout", content=iter([chunk] * (BODY_LIMIT_BYTES // len(chunk) + 1)))
    assert answer.status_code in (400, 413)
    assert operator.post("/login", headers={"content-length": "-1"}).status_code == 413


@pytest.mark.parametrize("path", ["/en/gradio_api/queue/join", "/login", "/nothing"])
def test_no_websocket_is_opened(operator, stranger, path):
    for client in (operator, stranger):
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(path):
            pass


@pytest.mark.parametrize("name", ["..%2faudit", "%2e%2e%2fpassword", "a%00", "a" * 300, "%c0%af"])
def test_a_name_in_a_url_cannot_leave_its_folder(operator, name):
    for path in (f"/api/presets/{name}", f"/static/{name}"):
        assert operator.get(path).status_code in (307, 404), path


def _as_header(cookies: dict[str, str]) -> dict[str, str]:
    return {"cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
