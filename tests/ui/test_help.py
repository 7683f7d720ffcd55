"""The help beside a field in a real browser: keys or the mouse open it, it has the job's figures, and no edit requests
it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ui.browser import begin_anew, box, expect, go, needs_chromium, until
from tools.browser import Server, logged_in, served

pytestmark = [pytest.mark.ui, needs_chromium]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("help")) as server:
        yield server


@pytest.fixture(scope="module")
def page(server) -> Iterator[Any]:
    with logged_in(server) as page:
        yield page


@pytest.fixture(autouse=True)
def _anew(page) -> None:
    begin_anew(page)


def ask(page, path: str):
    return page.locator(f"#field-{path.replace('.', '-')} .mb-ask")


def test_keys_open_it_use_a_value_and_close_it(page, server):
    go(page, server, "plan")
    button = ask(page, "parallel.recompute")
    button.focus()
    page.keyboard.press("Enter")
    opened = page.get_by_role("dialog", name="Recompute")
    expect(opened).to_contain_text("Computed for your job")
    expect(opened).to_contain_text("Guides say")
    expect(opened).to_contain_text("recompute_granularity")
    use = opened.get_by_role("button", name="Use Full")
    use.focus()
    page.keyboard.press("Enter")
    expect(opened.locator("th[data-own]")).to_contain_text("Full")
    expect(page.locator("#field-parallel-recompute input")).to_have_value("Full")
    page.keyboard.press("Escape")
    expect(opened).to_have_count(0)
    expect(button).to_be_focused()


def test_its_button_opens_and_closes_it_and_another_takes_its_place(page, server):
    go(page, server, "plan")
    ask(page, "engine").click()
    expect(page.get_by_role("dialog", name="Engine")).to_be_visible()
    ask(page, "engine").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    ask(page, "engine").click()
    ask(page, "parallel.recompute").press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(1)
    expect(page.get_by_role("dialog", name="Recompute")).to_be_visible()
    page.click('.mb-steps a[data-step="model"]')
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_an_edit_asks_for_no_help(page, server):
    go(page, server, "plan")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url) if "/api/help" in request.url else None)
    box(page, "training.micro_batch_size").fill("2")
    until(page, "b.summary.global_batch === 128")
    assert requested == []
    ask(page, "training.micro_batch_size").click()
    expect(page.get_by_role("dialog").locator("th[data-own]")).to_contain_text("2")
    assert len(requested) == 1


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_stays_inside_the_page_at_every_field(page, server, lang):
    for step in ("hardware", "training", "plan"):
        go(page, server, step, lang)
        for part in page.locator(f"#step-{step} [data-more]").all():
            part.click()
        for button in page.locator(f"#step-{step} .mb-ask:visible").all()[::6]:
            button.click()
            opened = page.get_by_role("dialog")
            expect(opened.locator(".mb-help-small")).to_be_visible()
            left, right = opened.evaluate(
                "(box) => [box.getBoundingClientRect().left, box.getBoundingClientRect().right]"
            )
            assert left >= 0
            assert right <= 1280
            page.keyboard.press("Escape")
            expect(opened).to_have_count(0)
