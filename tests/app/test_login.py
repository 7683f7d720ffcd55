"""The log-in page: what it shows, how it slows guessing, and what it leaves in the audit log."""

import json
import re

import pytest

from tests.app.site import PASSWORD, Clock, browser, log_in, site


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def home(tmp_path):
    return tmp_path


@pytest.fixture
def client(home, clock):
    return browser(site(home, clock, {}))


def audit(home) -> list[dict]:
    return [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]


def test_the_page_speaks_the_language_of_the_browser_and_loads_nothing_from_elsewhere(client):
    page = client.get("/login", headers={"accept-language": "zh-CN,zh;q=0.9"})
    assert 'lang="zh-CN"' in page.text
    assert "密码" in page.text
    assert "http" not in page.text.replace("http-equiv", "")
    assert re.findall("<script[^>]*>", page.text) == ['<script src="/static/login.js" defer>']
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_wrong_password_gets_a_clear_message_and_no_session(client, home):
    answer = log_in(client, "wrong")
    assert answer.status_code == 401
    assert "That is not the password" in answer.text
    assert "set-cookie" not in answer.headers
    assert [one["action"] for one in audit(home)] == ["login_failed"]


def test_what_was_typed_is_written_nowhere(client, home):
    for typed in ("wrong-canary-1", PASSWORD):
        log_in(client, typed)
    everything = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert b"canary" not in everything
    assert PASSWORD.encode() not in everything
    assert (home / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_guessing_is_slowed_and_the_right_password_must_wait_too(client, clock, home):
    for _ in range(3):
        assert log_in(client, "wrong").status_code == 401
    throttled = log_in(client)
    assert throttled.status_code == 429
    assert throttled.headers["retry-after"] == "1"
    assert "Wait 1 s" in throttled.text
    clock.now_s += 1
    assert log_in(client).status_code == 303
    assert [one["action"] for one in audit(home)][-2:] == ["login_throttled", "login"]


def test_whoever_floods_the_log_in_fills_no_disk(client, clock, home):
    for _ in range(3):
        log_in(client, "wrong")
    for _ in range(20):
        assert log_in(client, "wrong").status_code == 429
    assert [one["action"] for one in audit(home)][3:] == ["login_throttled"]
    clock.now_s += 1
    for _ in range(20):
        log_in(client, "wrong")
    assert [one["action"] for one in audit(home)][4:] == ["login_failed", "login_throttled"]


def test_a_form_that_is_too_long_or_not_text_is_a_wrong_password(client, clock):
    for body in (b"password=" + b"x" * 5000, b"password=\xff\xfe", b"", b"&&=&="):
        assert client.post("/login", content=body).status_code == 401
        clock.now_s += 100


def test_whoever_is_logged_in_is_sent_on(client):
    log_in(client)
    assert client.get("/login?lang=zh").headers["location"] == "/zh/"
