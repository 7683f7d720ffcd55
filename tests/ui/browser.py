"""The page in Chromium, as tests read it and act on it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from app.services import FIRST_DRAFT
from backend.job.mapping import dump_mapping
from tools.browser import CHROMIUM, READY_S, Site

playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
expect = playwright.expect
expect.set_options(timeout=180_000)  # five seconds, its default, are not enough on two busy cores

RESTING = "() => Megaboard.wizard?.bundle() && Megaboard.draft.isResting()"
POLL_MS = 50
"""A timer, not Playwright's frames: web/frames.js ends each chain of frames that began before the page was drawn."""

needs_chromium = pytest.mark.skipif(
    not CHROMIUM.exists(), reason="Debian's chromium is not installed (/usr/bin/chromium)"
)


def go(page: Any, site: Site, step: str, lang: str = "en") -> None:
    """Open a step of the wizard as a reload does, until nothing that it asked is under way.

    Before that a key pressed on the plans waits, and what a test then waits for may be the state before the key.
    """
    page.goto(f"{site.url}/{lang}/#{step}")
    page.reload()
    page.wait_for_function(RESTING, polling=POLL_MS)


def begin_anew(page: Any, changes: Mapping[str, Any] | None = None) -> None:
    """The draft of a new home, and the tabs that it opens with: which test ran before is no matter.

    `changes`: sections of the job that take the place of the draft's.
    """
    page.wait_for_function(RESTING, polling=POLL_MS)
    page.evaluate(
        # The answer to an import before it must not count as the answer to this one.
        """(text) => { sessionStorage.clear(); Megaboard.wizard.bundle().fetched = null;
            Megaboard.wizard.send('fetch', { kind: 'import', text }); }""",
        dump_mapping({**FIRST_DRAFT, **(changes or {})}),
    )
    until(page, "b.fetched?.kind === 'import' && Megaboard.draft.isResting()")


def box(page: Any, path: str) -> Any:
    """The input of the job's field."""
    return page.locator(f"#field-{path.replace('.', '-')} :is(input, textarea)").first


def problems(page: Any, path: str) -> Any:
    """What stands beside the job's field as its problems."""
    return page.locator(f"#field-{path.replace('.', '-')} .mb-problem")


def until(page: Any, holds: str) -> None:
    """Wait for a condition on the wizard's newest bundle, `b`. While the page loads there is none."""
    script = f"() => {{ const b = window.Megaboard?.wizard?.bundle(); return Boolean(b) && ({holds}); }}"
    page.wait_for_function(script, polling=POLL_MS)


class Release:
    """Lets requests go on that were held up on their way to the server."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self.held: list[Any] = []

    def first(self) -> Any:
        """What the first of them asks, once there is one."""
        deadline = time.monotonic() + READY_S
        while not self.held:
            assert time.monotonic() < deadline, "nothing was asked"
            self._page.wait_for_timeout(20)
        return self.held[0].request.post_data_json

    def __call__(self) -> None:
        self.first()
        while self.held:
            self.held.pop(0).continue_()


@contextmanager
def held(page: Any, matches: Callable[[Any], bool]) -> Iterator[Release]:
    """Events of the page that match what they ask wait until they are released; others go before them."""
    release = Release(page)

    def on(route: Any) -> None:
        if matches(route.request.post_data_json):
            release.held.append(route)
        else:
            route.continue_()

    page.route("**/run/predict", on)
    try:
        yield release
    finally:
        page.unroute("**/run/predict")
