"""A killed run is continued with a change from the page, and trains on from its checkpoint: nodes, gang and browser.

Only the whole path shows that the engine gets the checkpoint that the user has chosen in the page.
"""

from pathlib import Path

import pytest

from backend.job.job import Job
from backend.runs.controller import Controller
from backend.runs.states import RunState
from tests.runs.gangs import marked, with_mode
from tests.ui.browser import box, expect, needs_chromium, until
from tests.waiting import WITHIN_S
from tools.browser import logged_in, served

pytestmark = [pytest.mark.ui, pytest.mark.e2e, needs_chromium]


def test_a_killed_run_trains_on_with_a_change_from_the_checkpoint_that_the_page_marked(
    controller: Controller, job: Job, home: Path
) -> None:
    before = controller.launch(with_mode(job, "killed@1", save=3))
    assert controller.wait(before, WITHIN_S) is RunState.FAILED
    with served(home) as server, logged_in(server) as page:
        page.goto(f"{server.url}/en/#runs/{before}")
        page.get_by_role("button", name="Continue with changes").click()
        dialog = page.locator("dialog.mbm-continue")
        expect(dialog.locator("input:checked")).to_have_value("6")
        dialog.locator('input[value="3"]').check()
        dialog.locator(".mb-primary").click()
        expect(page.locator(".mb-continuing")).to_have_attribute("data-state", "free")
        page.evaluate("() => Megaboard.fields.goTo('environment', 'training')")
        box(page, "environment").fill("TRAINER_MODE=ok\nTRAINER_STEPS=10")
        until(page, "b.source && !b.problems.some((one) => one.severity === 'error')")
        page.click('.mb-steps a[data-step="launch"]')
        page.locator('[data-act="check"]').click()
        expect(page.locator('[data-act="launch"]')).to_be_enabled()
        page.locator('[data-act="launch"]').click()
        page.wait_for_url(lambda url: "#runs/" in url)
        run = page.url.partition("#runs/")[2]
        expect(page.locator(".mbm-badge").first).to_have_attribute("data-state", "finished")
        expect(page.locator(".mbm-attempts a")).to_contain_text(before)
    shown = controller.snapshot(run)
    assert (shown.state, shown.source, shown.checkpoint_step) == (RunState.FINISHED, (before, 3), 3)
    assert [point.step for point in controller.points(run)] == list(range(4, 11))
    assert marked(home, run) == 0
