"""The page in Chromium: functions that read it and act on it for tests."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from app.services import FIRST_DRAFT
from backend.job.mapping import dump_mapping
from tools.browser import CHROMIUM, READY_S, Server

playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
expect = playwright.expect
expect.set_options(timeout=180_000)  # The default of five seconds is too short.

STEPS = ("hardware", "model", "training", "plan", "review", "launch")
RESTING = "() => Megaboard.wizard?.payload() && Megaboard.draft.isResting()"
POLL_MS = 50
"""This is a timer, not Playwright's frames, because web/frames.js ends each chain of frames that began before the page
was drawn."""

PROBE = "/probe/run/predict"
"""A request for this path shows whether the page's requests are intercepted."""

needs_chromium = pytest.mark.skipif(
    not CHROMIUM.exists(), reason="Debian's chromium is not installed (/usr/bin/chromium)"
)


def go(page: Any, server: Server, step: str, lang: str = "en") -> None:
    """Open a step of the wizard as a reload does, and wait until none of its requests is under way.

    Before that, a key press on the plans waits, and a test may read the state before the key press.
    """
    address = f"{server.url}/{lang}/"
    is_open = page.url.partition("#")[0] == address
    page.goto(f"{address}#{step}")
    if is_open:
        # A change of the hash alone loads nothing.
        page.reload()
    page.wait_for_function(RESTING, polling=POLL_MS)


def begin_anew(page: Any, changes: Mapping[str, Any] | None = None) -> None:
    """Reset the draft to that of a new home, and the tabs to their first choice, whichever test ran before.

    `changes` has sections of the job that replace those of the draft.
    """
    page.wait_for_function(RESTING, polling=POLL_MS)
    page.evaluate(
        # The answer to the previous import must not count as the answer to this one.
        """(text) => { sessionStorage.clear(); Megaboard.wizard.payload().fetched = null;
            Megaboard.wizard.send('fetch', { kind: 'import', text }); }""",
        dump_mapping({**FIRST_DRAFT, **(changes or {})}),
    )
    until(page, "b.fetched?.kind === 'import' && Megaboard.draft.isResting()")


def box(page: Any, path: str) -> Any:
    """Return the input of a job's field."""
    return page.locator(f"#field-{path.replace('.', '-')} :is(input, textarea)").first


def problems(page: Any, path: str) -> Any:
    """Return the problems that are shown beside a job's field."""
    return page.locator(f"#field-{path.replace('.', '-')} .mb-problem")


def until(page: Any, holds: str) -> None:
    """Wait for a condition on the wizard's newest payload, `b`. While the page loads, there is none."""
    script = f"() => {{ const b = window.Megaboard?.wizard?.payload(); return Boolean(b) && ({holds}); }}"
    page.wait_for_function(script, polling=POLL_MS)


@contextmanager
def without_timers(page: Any, delay_ms: int) -> Iterator[None]:
    """Start no timer of this delay, so that what the page does in its stead does not depend on the machine's speed."""
    page.evaluate(
        """(delay) => {
          window.everyTimeout = window.setTimeout;
          window.setTimeout = (act, ms, ...rest) => (ms === delay ? 0 : window.everyTimeout(act, ms, ...rest));
        }""",
        delay_ms,
    )
    try:
        yield
    finally:
        page.evaluate("() => { window.setTimeout = window.everyTimeout; }")


class Release:
    """Held requests. `release` sends them on to the server."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self.held: list[Any] = []

    def first(self) -> Any:
        """Return the body of the first held request, after waiting for it."""
        deadline = time.monotonic() + READY_S
        while not self.held:
            assert time.monotonic() < deadline, "the page sent no request"
            self._page.wait_for_timeout(20)
        return self.held[0].request.post_data_json

    def __call__(self) -> None:
        self.first()
        while self.held:
            self.held.pop(0).continue_()


@contextmanager
def held(page: Any, matches: Callable[[Any], bool]) -> Iterator[Release]:
    """Hold the page's events with matching bodies until they are released. Other events are sent at once."""
    release = Release(page)

    def on(route: Any) -> None:
        if route.request.url.endswith(PROBE):
            route.fulfill(status=204)
        elif matches(route.request.post_data_json):
            release.held.append(route)
        else:
            route.continue_()

    page.route("**/run/predict", on)
    try:
        # Chromium may let an open page's requests pass for some milliseconds after it said that it intercepts them.
        if page.url != "about:blank":
            page.wait_for_function(f"async () => (await fetch('{PROBE}')).status === 204", polling=POLL_MS)
        yield release
    finally:
        page.unroute("**/run/predict")
