"""The log-in page: its content, its throttle, and its entries in the audit log."""

import json
import re

import pytest

from app.text import t
from app.web.passwords import PasswordHash
from tests.app.tiny_app import HASH, PASSWORD, PLAIN, browser, log_in, tiny_app
from tests.clock import Clock
from tests.texts import said


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def home(tmp_path):
    return tmp_path


@pytest.fixture
def client(home, clock):
    return browser(tiny_app(home, clock, {}))


def audit(home) -> list[dict]:
    return [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]


def test_the_page_has_the_language_of_the_browser_and_loads_nothing_from_other_servers(client):
    page = client.get("/login", headers={"accept-language": "zh-CN,zh;q=0.9"})
    assert 'lang="zh-CN"' in page.text
    assert t("zh", "login.password") in page.text
    assert "http" not in page.text.replace("http-equiv", "")
    assert re.findall("<script[^>]*>", page.text) == ['<script src="/static/web/login.js" defer>']
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_wrong_password_gets_a_clear_message_and_no_session(client, home):
    answer = log_in(client, "wrong")
    assert answer.status_code == 401
    assert t("en", "login.wrong") in answer.text
    assert "set-cookie" not in answer.headers
    assert [entry["action"] for entry in audit(home)] == ["login_failed"]


def test_a_typed_password_is_stored_nowhere(client, home):
    for typed in ("wrong-canary-1", PASSWORD):
        log_in(client, typed)
    everything = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert b"canary" not in everything
    assert PASSWORD.encode() not in everything
    assert (home / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_after_wrong_passwords_the_right_one_must_wait_too(client, clock, home):
    for _ in range(3):
        assert log_in(client, "wrong").status_code == 401
    throttled = log_in(client)
    assert throttled.status_code == 429
    assert throttled.headers["retry-after"] == "1"
    assert "Wait 1 s" in throttled.text
    clock.now += 1
    assert log_in(client).status_code == 303
    assert [entry["action"] for entry in audit(home)][-2:] == ["login_throttled", "login"]


def test_a_flood_of_log_ins_does_not_fill_the_disk(client, clock, home):
    for _ in range(3):
        log_in(client, "wrong")
    for _ in range(20):
        assert log_in(client, "wrong").status_code == 429
    assert [entry["action"] for entry in audit(home)][3:] == ["login_throttled"]
    clock.now += 1
    for _ in range(20):
        log_in(client, "wrong")
    assert [entry["action"] for entry in audit(home)][4:] == ["login_failed", "login_throttled"]


def test_a_form_that_is_too_long_or_not_text_is_a_wrong_password(client, clock):
    for body in (b"password=" + b"x" * 5000, b"password=\xff\xfe", b"", b"&&=&="):
        assert client.post("/login", content=body).status_code == 401
        clock.now += 100


def test_a_logged_in_browser_is_redirected_to_the_page(client):
    log_in(client)
    assert client.get("/login?lang=zh").headers["location"] == "/zh/"


def test_a_flood_of_wrong_passwords_locks_out_neither_a_known_browser_nor_a_client_at_the_own_name(home, clock):
    """90 wrong passwords a second locked the owner out in 16 of 16 attempts."""
    app = tiny_app(home, clock, {})
    owner, fresh, hostile = browser(app), browser(app), browser(app, PLAIN)
    log_in(owner)
    came_in = 0
    for _ in range(6):
        for _ in range(20):
            log_in(hostile, "wrong")
        clock.now += 1
        came_in += log_in(owner).status_code == 303
        fresh.cookies.clear()
        came_in += log_in(fresh).status_code == 303
        assert log_in(hostile).status_code in (200, 429)
    assert came_in == 12


def test_a_flood_from_one_address_locks_out_no_other_address(home, clock):
    app = tiny_app(home, clock, {})
    hostile, owner = (browser(app, PLAIN, address) for address in ("192.0.2.1", "192.0.2.2"))
    for _ in range(50):
        log_in(hostile, "wrong")
    assert log_in(hostile).status_code == 429
    assert log_in(owner).status_code == 200


def test_a_client_that_must_wait_at_a_shared_name_reads_about_the_own_name(home, clock):
    client = browser(tiny_app(home, clock, {}), PLAIN)
    for _ in range(3):
        log_in(client, "wrong")
    assert said(log_in(client).text, "login.wait.plain_name", "en")
    assert said(client.post("/login?lang=zh", data={"password": "x"}).text, "login.wait.plain_name", "zh")


def test_a_device_cookie_gives_a_separate_count_and_no_access(home, clock):
    app = tiny_app(home, clock, {})
    client = browser(app)
    log_in(client)
    client.post("/logout")
    assert client.get("/", headers={"accept": "text/html"}).headers["location"] == "/login"
    for _ in range(3):
        assert log_in(client, "wrong").status_code == 401
    assert log_in(client).status_code == 429, "its own wrong passwords count too"
    assert log_in(browser(app)).status_code == 303


def test_a_device_cookie_of_another_password_or_an_invalid_one_is_ignored(home, clock):
    other = tiny_app(home, clock, {}, password=PasswordHash.of("another-password", cost=2, salt=HASH.salt))
    known = browser(other)
    assert log_in(known, "another-password").status_code == 303
    app = tiny_app(home, clock, {})
    for _ in range(3):
        log_in(browser(app), "wrong")
    for cookies in (dict(known.cookies), {f"megaboard_device_{HASH.name}": "0" * 32 + "." + "0" * 64}):
        client = browser(app)
        client.cookies.update(cookies)
        assert log_in(client).status_code == 429
