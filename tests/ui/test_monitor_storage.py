"""Storage in a real browser: the sizes of runs, a deletion by its buttons, and the rules."""

import time

import pytest

from backend.runs.retention import Retention, Rules
from backend.runs.states import EventKind
from backend.runs.store.deletion import deleted_runs
from tests.ui.browser import expect, needs_chromium
from tests.ui.monitored import Monitored, open_run
from tests.waiting import wait_for

pytestmark = [pytest.mark.ui, needs_chromium]

NASTY = "<img src=x onerror=alert(1)>'\"; DROP TABLE runs; --"


def finished(server: Monitored, run: str, name: str = "tiny", age_s: float = 900) -> str:
    stored_run = server.run(run, name=name, nodes=1, now=time.time() - age_s)
    stored_run.start()
    stored_run.steps(1, 10)
    stored_run.exit(0)
    stored_run.add_event(EventKind.FINISHED)
    return run


@pytest.fixture(scope="module", autouse=True)
def old_run(server: Monitored) -> str:
    """Store a run that ended ten days ago, before the server first measures sizes (at most once a minute)."""
    return finished(server, "20260204-000000-old-aaaa", age_s=10 * 86400)


def is_deleted(server: Monitored, run: str) -> bool:
    with server.store.read() as connection:
        return run in {deleted_run.run for deleted_run in deleted_runs(connection)}


@pytest.mark.parametrize(("lang", "button", "sure"), [("en", "Delete…", "Delete"), ("zh", "删除…", "删除")])
def test_a_run_is_deleted_from_its_page_after_the_page_said_what_goes(server, page, lang, button, sure):
    run = finished(server, f"20260201-000000-{lang}-aaaa")
    open_run(page, server, run, lang)
    page.locator(".mbm-head").get_by_role("button", name=button).click()
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("tiny")
    expect(dialog.locator("li").first).to_contain_text("rank 0")
    page.keyboard.press("Escape")
    assert not is_deleted(server, run)
    page.locator(".mbm-head").get_by_role("button", name=button).click()
    dialog.get_by_role("button", name=sure, exact=True).click()
    page.wait_for_function("() => location.hash === '#runs'")
    wait_for(lambda: is_deleted(server, run))
    expect(page.locator(".mbm-deletions [data-tone=good]").last).to_contain_text(f"{run}.zip")
    expect(page.locator(f'.mbm-list [data-key="{run}"]')).to_have_count(0)


def test_a_second_tab_that_deletes_the_same_run_is_told(server, page, context):
    run = finished(server, "20260202-000000-twice-aaaa", NASTY)
    other = context.new_page()
    for tab in (page, other):
        tab.goto(f"{server.url}/en/#runs")
        tab.locator(f'.mbm-list [data-key="{run}"] [data-do=delete]').click()
        expect(tab.locator("dialog[open]")).to_contain_text(NASTY)
        tab.locator("dialog[open] input[type=checkbox]").set_checked(False)
    for tab in (page, other):
        # The second tab may know already that the run is gone; then its button is disabled, and the click does nothing.
        tab.locator("dialog[open] .mbm-danger").evaluate("(button) => button.click()")
        wait_for(lambda: is_deleted(server, run))
    expect(other.locator(".mbm-deletions")).to_contain_text(run)
    expect(other.locator(f'.mbm-list [data-key="{run}"]')).to_have_count(0)
    other.close()


def test_a_run_that_goes_on_has_no_button_and_storage_says_why(server, page):
    stored_run = server.run("20260203-000000-live-aaaa", name="live", nodes=1)
    stored_run.start()
    page.goto(f"{server.url}/en/#runs")
    expect(page.locator(f'.mbm-list [data-key="{stored_run.id}"] [data-do=delete]')).to_be_hidden()
    page.locator(".mbm-storage > summary").click()
    button = page.locator(f'.mbm-storage-runs [data-key="{stored_run.id}"] button')
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", f"Run {stored_run.id} has not ended, so it cannot be deleted.")


def test_rules_are_saved_and_say_what_they_would_delete_now(server, page):
    page.goto(f"{server.url}/en/#runs")
    page.locator(".mbm-storage > summary").click()
    rules = page.locator(".mbm-storage-rules")
    page.wait_for_selector('.mbm-storage-runs [data-key="20260204-000000-old-aaaa"]')
    raw, days = rules.locator("input[type=number]").nth(0), rules.locator("input[type=number]").nth(1)
    expect(raw).to_have_value("14")
    raw.fill("3")
    days.fill("5")  # No other test's run is as old.
    expect(rules).to_contain_text("1 runs are deleted at once")
    days.fill("")
    rules.get_by_role("button").click()
    expect(rules).to_contain_text("Saved.")
    assert Retention(server.home, server.store).rules() == Rules(raw_days=3)
