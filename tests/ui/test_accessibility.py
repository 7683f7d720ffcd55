"""axe-core finds no serious violation in any state of the page, light or dark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.runs.states import EventKind
from tests.ui.browser import begin_anew, go, needs_chromium
from tests.ui.test_monitor import Monitored, open_run
from tests.ui.test_wizard_looks import JOB
from tools.browser import Site, chromium, logged_in, served
from tools.stored_runs import problem

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.filter(({ impact }) => ["serious", "critical"].includes(impact)).flatMap(({ id, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${html.slice(0, 300)} ${failureSummary}`));
}"""
STEPS = ("hardware", "model", "training", "plan", "review", "launch")
DIALOGS = {"going": ".mbm-head .mbm-title .mbm-danger", "broken": ".mbm-head .mbm-title button:visible"}
"""Run -> the buttons that open a dialog."""
OPENED = """() => {
  for (const button of document.querySelectorAll('[data-more][aria-expanded="false"]')) button.click();
  for (const details of document.querySelectorAll("details")) details.open = true;
}"""

pytestmark = [
    pytest.mark.ui,
    needs_chromium,
    pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (make lint, with npm)"),
]


@pytest.fixture(scope="module", params=["light", "dark"])
def theme(request: Any) -> str:
    return request.param


@pytest.fixture(scope="module")
def wizard(tmp_path_factory: Any) -> Iterator[Site]:
    with served(tmp_path_factory.mktemp("wizard")) as site:
        yield site


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: Any) -> Iterator[Monitored]:
    site = Monitored(tmp_path_factory.mktemp("monitor"))
    site.start()
    yield site
    site.kill()
    site.store.close()


def faults(page: Any) -> list[str]:
    """Return the serious and critical violations of the present page."""
    # Colours in the middle of a transition are of neither state.
    page.wait_for_function("() => document.getAnimations().every((one) => one.playState !== 'running')")
    page.evaluate(f"window.axe ?? ({{}}, eval)({AXE.read_text(encoding='utf-8')!r})")
    return page.evaluate(SERIOUS)


def check(violations: dict[str, list[str]]) -> None:
    assert not any(violations.values()), "\n".join(
        f"{state}: {fault}" for state in violations for fault in violations[state]
    )


def test_the_log_in(wizard: Site, theme: str) -> None:
    with chromium() as browser:
        page = browser.new_page(color_scheme=theme)
        page.goto(f"{wizard.url}/login?lang=en")
        check({"log-in": faults(page)})


def test_the_steps_of_the_wizard(wizard: Site, theme: str) -> None:
    result = {}
    with logged_in(wizard) as page:
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        for step in STEPS:
            go(page, wizard, step)
            page.evaluate(OPENED)
            result[step] = faults(page)
        go(page, wizard, "plan")
        for tab in page.locator('[role="tab"]').all():
            name = tab.get_attribute("data-tab")
            tab.click()
            page.locator(f"#place-{name} .mb-place > :first-child").wait_for()
            page.evaluate(OPENED)
            result[name] = faults(page)
        go(page, wizard, "training")
        page.locator(".mb-ask:visible").first.click()
        page.locator(".mb-help:popover-open dl").first.wait_for()
        result["help"] = faults(page)
        # Errors beside fields, and a job that is complete, with its files.
        begin_anew(page, {"parallel": {"tensor": 3}})
        go(page, wizard, "plan")
        page.evaluate(OPENED)
        page.locator('.mb-problem[data-severity="error"]:visible').first.wait_for()
        result["problems"] = faults(page)
        begin_anew(page, JOB)
        for step in ("hardware", "review", "launch"):
            go(page, wizard, step)
            page.evaluate(OPENED)
            result[f"{step}, complete"] = faults(page)
    check(result)


def test_the_monitor(monitored: Monitored, theme: str) -> None:
    result = {}
    with logged_in(monitored) as page:
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        page.goto(f"{monitored.url}/en/#runs")
        page.locator("#area-monitor h2").first.wait_for()
        result["runs"] = faults(page)
        for name in ("going", "broken"):
            run = monitored.run(f"20260101-000000-{theme}-{name}", name=name, nodes=2, gpus_per_node=8)
            run.start()
            run.steps(1, 120)
            run.beat()
            if name == "broken":
                run.log(0, "rank0.log", b"ValueError: bad shape\n")
                run.exit(0, code=1, reason="failed")
                run.exit(1)
                cause = problem("training_failed", run.addresses[0], rank=0, file="rank0.log", exit=1, lines="bad")
                for kind in (EventKind.FAILING, EventKind.FAILED):
                    run.add_event(kind, 0, problem=cause)
            open_run(page, monitored, run.id)
            page.locator(".mbm-heat td").first.wait_for()
            page.evaluate(OPENED)
            result[name] = faults(page)
            for button in page.locator(DIALOGS[name]).all():
                button.click()
                page.locator("dialog[open]").wait_for()
                result[f"{name}: {button.inner_text()}"] = faults(page)
                page.keyboard.press("Escape")
        assert len(result) == 1 + len(DIALOGS) + 4, result.keys()
        page.goto(f"{monitored.url}/en/#runs")
        page.locator(".mbm-list tbody tr").first.wait_for()
        page.evaluate(OPENED)
        result["list"] = faults(page)
        page.locator('.mbm-list [data-do="delete"]:visible').first.click()
        page.locator("dialog[open] .mbm-delete-plan:visible").wait_for()
        result["dialog"] = faults(page)
        page.keyboard.press("Escape")
        for box in page.locator(".mbm-choose input").all()[:2]:
            box.check()
        page.locator(".mbm-toolbar button").last.click()
        page.locator(".mbm-fields table").wait_for()
        page.evaluate(OPENED)
        result["side by side"] = faults(page)
    check(result)
