"""The real server in a real browser: the log-in, the frame around wizard and monitor, and the server's end."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from app.text import t
from tests.ui.browser import POLL_MS, expect, needs_chromium, playwright
from tools.browser import END_S, READY_S, VIEWPORT, chromium

pytestmark = [pytest.mark.ui, needs_chromium]


class Server:
    """`megaboard serve` on a free port with a home folder of its own."""

    def __init__(self, home: Path) -> None:
        environment = {**os.environ, "MEGABOARD_HOME": str(home), "LANG": "C.UTF-8"}
        command = [sys.executable, "-m", "app.main", "serve", "--port", "0"]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said = ""
        deadline = time.monotonic() + READY_S
        while "Ctrl-C" not in self.said:
            line = self.process.stdout.readline()
            assert line, f"it ended: {self.said}"
            assert time.monotonic() < deadline, self.said
            self.said += line
        self.address = re.search(r"http://mb-\w+\.localhost:\d+", self.said)[0]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_S)

    def first_password(self) -> str:
        """Return the generated password. A server without a terminal writes it to a file, not to a log."""
        assert self.said.index("password") < self.said.index("Building the page"), "told before the wait, not after it"
        path = Path(re.search(r"in (/\S+password-\d+\.txt)", self.said)[1])
        assert path.stat().st_mode & 0o777 == 0o600
        return path.read_text().strip()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("home"))
    yield server
    if server.process.poll() is None:
        server.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def password(server):
    return server.first_password()


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def context(browser, server, password):
    """Return an English, light context that is logged in. Tests leave its session, language and theme as they are."""
    context = browser.new_context(locale="en-US", viewport=VIEWPORT)
    log_in(context, server, password)
    return context


@pytest.fixture
def page(context, server):
    """Return a new page of `context`."""
    page = watched(context, server)
    page.goto(f"{server.address}/")
    ready(page)
    yield page
    page.close()


@pytest.fixture(scope="module")
def other_context(browser, server, password):
    """Return a second such context, for the tests that change its language, its theme and at last its session."""
    context = browser.new_context(locale="en-US", color_scheme="light", viewport=VIEWPORT)
    log_in(context, server, password)
    return context


@pytest.fixture
def other_page(other_context, server):
    """Return a new page of `other_context`."""
    page = watched(other_context, server)
    page.goto(f"{server.address}/en/")
    ready(page)
    yield page
    page.close()


@pytest.fixture
def open_page(browser, server, password):
    """Return a function that opens a logged-in page in a new context."""
    contexts = []

    def open_page(locale="en-US", scheme="light"):
        context = browser.new_context(locale=locale, color_scheme=scheme, viewport=VIEWPORT)
        contexts.append(context)
        return log_in(context, server, password)

    yield open_page
    for context in contexts:
        context.close()


def log_in(context, server, password):
    """Log a new context in, and return its page."""
    context.set_default_timeout(180_000)
    page = watched(context, server)
    page.goto(f"{server.address}/")
    page.fill("#password", password)
    page.press("#password", "Enter")
    ready(page)
    return page


def watched(context, server):
    """Return a new page. `page.faults` lists the browser's errors."""
    page = context.new_page()
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda message: message.type == "error" and page.faults.append(message.text))
    page.on("request", lambda request: _note_foreign(page, request.url, server.address))
    return page


def _note_foreign(page, url, own):
    if not url.startswith((own, "data:", "blob:")):
        page.faults.append(f"request to {url}")


def ready(page):
    page.wait_for_selector(".mb-steps a[aria-current]")
    page.wait_for_selector("#step-launch", state="attached")


def shown_steps(page):
    return page.locator(".mb-step:visible").evaluate_all("steps => steps.map(step => step.id)")


def focused(page):
    return page.evaluate("document.activeElement.id")


@pytest.mark.parametrize(
    ("locale", "scheme", "language"), [("en-US", "light", "en"), ("zh-CN", "dark", "zh-CN")], ids=["en", "zh"]
)
def test_the_page_runs_under_its_policy_without_a_complaint_or_a_foreign_request(open_page, locale, scheme, language):
    page = open_page(locale, scheme)
    assert page.evaluate("document.documentElement.lang") == language
    assert page.evaluate("document.body.classList.contains('dark')") == (scheme == "dark")
    for view in ("plan", "review", "runs", "hardware"):
        page.evaluate("place => Megaboard.go(place)", view)
        page.locator("#area-monitor h2" if view == "runs" else f"#heading-{view}").first.wait_for()
        page.wait_for_function("() => Megaboard.draft.isResting()", polling=POLL_MS)
    assert page.faults == []


def test_a_failure_inside_the_server_is_reported_until_it_is_closed(page):
    headers = "{ 'Content-Type': 'application/json' }"
    too_few = f"{{ method: 'POST', headers: {headers}, body: '{{\"fn_index\": 0, \"data\": []}}' }}"
    assert page.evaluate(f"fetch('/en/gradio_api/run/predict', {too_few}).then((answer) => answer.status)") == 500
    notice = page.get_by_role("alert").filter(has_text=t("en", "monitor.failed.title"))
    expect(notice).to_be_visible()
    notice.get_by_role("button").click()
    expect(notice).to_have_count(0)


def test_next_and_back_show_one_step_and_move_the_focus_to_its_heading(page):
    assert shown_steps(page) == ["step-hardware"]
    page.locator("#step-hardware .mb-turn button").press("Enter")
    assert shown_steps(page) == ["step-model"]
    assert focused(page) == "heading-model"
    assert page.locator(".mb-steps a[aria-current=step]").get_attribute("data-step") == "model"
    page.locator("#step-model .mb-turn button").first.press("Enter")
    assert shown_steps(page) == ["step-hardware"]
    page.go_back()
    expect(page.locator("#step-model")).to_be_visible()
    assert shown_steps(page) == ["step-model"]


def test_a_press_on_next_counts_although_content_moves_the_button_before_the_release(page):
    page.click(".mb-steps a[data-step=review]")
    page.wait_for_function("() => Megaboard.draft.isResting()", polling=POLL_MS)
    following = page.locator("#step-review .mb-turn .mb-primary")
    following.hover()
    page.mouse.down()
    following.evaluate("button => { button.style.transform = 'translateY(-200px)'; }")
    page.mouse.up()
    assert shown_steps(page) == ["step-launch"]
    page.go_back()
    following.hover()
    page.mouse.down()
    page.mouse.move(5, 5)  # The user changed their mind.
    page.mouse.up()
    assert shown_steps(page) == ["step-review"]


def test_the_location_keeps_the_place_over_a_reload_and_a_change_of_language(other_page):
    page = other_page
    page.click(".mb-steps a[data-step=plan]")
    page.reload()
    ready(page)
    assert shown_steps(page) == ["step-plan"]
    page.click("a[data-language=zh]")
    ready(page)
    assert page.url.endswith("/zh/#plan")
    assert shown_steps(page) == ["step-plan"]
    page.goto(page.url.split("/zh/")[0] + "/")
    ready(page)
    assert page.url.endswith("/zh/")


def test_the_areas_switch_without_losing_the_step(page):
    page.click(".mb-steps a[data-step=training]")
    page.click(".mb-areas a[data-area=monitor]")
    assert page.locator("#area-monitor").is_visible()
    assert shown_steps(page) == []
    page.click(".mb-areas a[data-area=wizard]")
    assert shown_steps(page) == ["step-training"]


def test_an_empty_list_of_runs_says_what_to_do(other_page, server):
    for lang, words in (("zh", "还没有任何运行"), ("en", "No runs yet")):
        other_page.goto(f"{server.address}/{lang}/#runs")
        other_page.get_by_role("heading", name=words).wait_for()
        other_page.locator(".mbm-empty button").click()
        other_page.wait_for_function("() => document.documentElement.dataset.step === 'hardware'")


def test_the_theme_is_remembered(other_page):
    page = other_page
    assert not page.evaluate("document.body.classList.contains('dark')")
    page.click("[data-theme-toggle]")
    assert page.get_attribute("[data-theme-toggle]", "aria-pressed") == "true"
    page.reload()
    ready(page)
    assert page.evaluate("document.body.classList.contains('dark')")


def test_everything_in_the_frame_is_reached_by_the_keyboard(page):
    reached = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
    expected = ("data-skip", 'data-area="monitor"', 'data-language="zh"', "data-theme-toggle", 'data-step="launch"')
    places = [next(i for i, html in enumerate(reached) if part in html) for part in expected]
    assert places == sorted(places)


def test_the_session_cookie_is_hidden_from_scripts(page):
    assert "megaboard" not in page.evaluate("document.cookie")
    (cookie,) = [cookie for cookie in page.context.cookies() if re.fullmatch(r"megaboard_[0-9a-f]{8}", cookie["name"])]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_logging_out_ends_every_tab(other_page, server):
    page = other_page
    other = page.context.new_page()
    other.goto(server.address + "/en/")
    ready(other)
    page.click(".mb-tools form button")
    page.wait_for_selector("#password")
    # The tab may go to the log-in page before it is asked to read something.
    with suppress(playwright.Error):
        other.evaluate("fetch('/en/config').catch(() => null)")
    other.wait_for_selector("#password")


def test_a_signal_ends_the_server_and_the_next_start_knows_the_password(tmp_path, browser):
    first = Server(tmp_path)
    password = first.first_password()
    assert first.end() == 0
    again = Server(tmp_path)
    assert password not in again.said
    page = browser.new_page()
    page.goto(again.address)
    page.fill("#password", password)
    page.press("#password", "Enter")
    ready(page)
    assert again.end(signal.SIGINT) == 0
