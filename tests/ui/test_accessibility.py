"""axe-core finds no serious violation in any state of the page, light or dark.

In the dark theme only the rules run whose result depends on colours: the theme changes nothing else.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.runs.states import EventKind
from tests.ui.browser import STEPS, begin_anew, go, needs_chromium, until
from tests.ui.monitored import Monitored, open_run
from tests.ui.test_wizard_looks import JOB
from tools.browser import Server, chromium, logged_in, served
from tools.stored_runs import problem

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async (only) => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"], ...(only && { runOnly: only }) });
  return violations.filter(({ impact }) => ["serious", "critical"].includes(impact)).flatMap(({ id, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${html.slice(0, 300)} ${failureSummary}`));
}"""
OF_COLOURS = ["color-contrast", "link-in-text-block"]
CHANGE_THEME = "() => document.querySelector('[data-theme-toggle]').click()"
IS_DARK = "() => document.body.classList.contains('dark')"
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


@pytest.fixture(scope="module")
def wizard(tmp_path_factory: Any) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("wizard")) as server:
        yield server


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: Any) -> Iterator[Monitored]:
    server = Monitored(tmp_path_factory.mktemp("monitor"))
    server.start()
    yield server
    server.kill()
    server.store.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


class Audit:
    """The serious and critical violations of a page in each state that was audited."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.violations: dict[str, list[str]] = {}
        page.emulate_media(color_scheme="light", reduced_motion="reduce")

    def __call__(self, state: str) -> None:
        """Audit the page as it is now: in the light theme, and after a press on the theme's button in the dark one."""
        assert f"{state}, light" not in self.violations
        for theme, only in (("light", None), ("dark", OF_COLOURS)):
            assert self.page.evaluate(IS_DARK) == (theme == "dark")
            self.violations[f"{state}, {theme}"] = self.faults(only)
            self.page.evaluate(CHANGE_THEME)

    def faults(self, only: list[str] | None = None) -> list[str]:
        """Return the violations of the page as it is, of these rules or of all."""
        # Colours in the middle of a transition are of neither state.
        self.page.wait_for_function("() => document.getAnimations().every((one) => one.playState !== 'running')")
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(f"({{}}, eval)({AXE.read_text(encoding='utf-8')!r})")
        return list(self.page.evaluate(SERIOUS, only))

    def check(self) -> None:
        assert not any(self.violations.values()), "\n".join(
            f"{state}: {fault}" for state, faults in self.violations.items() for fault in faults
        )


def walk(page: Any, step: str) -> None:
    """Show a step as a click on it does, with all of its parts opened and its newest figures."""
    page.click(f'.mb-steps a[data-step="{step}"]')
    until(page, f"b.step === '{step}' && Megaboard.draft.isResting()")
    page.evaluate(OPENED)


def test_the_log_in(wizard: Server, browser: Any) -> None:
    page = browser.new_page()
    page.goto(f"{wizard.url}/login?lang=en")
    audit = Audit(page)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        audit.violations[theme] = audit.faults()
    page.close()
    audit.check()


def test_the_steps_of_the_wizard(wizard: Server, browser: Any) -> None:
    with logged_in(wizard, browser) as page:
        audit = Audit(page)
        go(page, wizard, "hardware")
        for step in STEPS:
            walk(page, step)
            audit(step)
        walk(page, "plan")
        for tab in page.locator('[role="tab"]').all():
            name = tab.get_attribute("data-tab")
            tab.click()
            page.locator(f"#place-{name} .mb-place > :first-child").wait_for()
            page.evaluate(OPENED)
            audit(name)
        walk(page, "training")
        page.locator(".mb-ask:visible").first.click()
        page.locator(".mb-help:popover-open dl").first.wait_for()
        audit("help")
        page.keyboard.press("Escape")
        # Errors beside fields, and a job that is complete, with its files.
        begin_anew(page, {"parallel": {"tensor": 3}})
        walk(page, "plan")
        page.locator('.mb-problem[data-severity="error"]:visible').first.wait_for()
        audit("problems")
        begin_anew(page, JOB)
        for step in ("hardware", "review", "launch"):
            walk(page, step)
            audit(f"{step}, complete")
    audit.check()


def test_the_monitor(monitored: Monitored, browser: Any) -> None:
    with logged_in(monitored, browser) as page:
        audit = Audit(page)
        page.goto(f"{monitored.url}/en/#runs")
        page.locator("#area-monitor h2").first.wait_for()
        audit("runs")
        for name in ("going", "broken"):
            run = monitored.run(f"20260101-000000-{name}-0000", name=name, nodes=2, gpus_per_node=8)
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
            audit(name)
            for button in page.locator(DIALOGS[name]).all():
                button.click()
                page.locator("dialog[open]").wait_for()
                audit(f"{name}: {button.inner_text()}")
                page.keyboard.press("Escape")
        assert len(audit.violations) == 2 * (1 + len(DIALOGS) + 4), audit.violations.keys()
        page.goto(f"{monitored.url}/en/#runs")
        page.locator(".mbm-list tbody tr").first.wait_for()
        page.evaluate(OPENED)
        audit("list")
        page.locator('.mbm-list [data-do="delete"]:visible').first.click()
        page.locator("dialog[open] .mbm-delete-plan:visible").wait_for()
        audit("dialog")
        page.keyboard.press("Escape")
        for box in page.locator(".mbm-choose input").all()[:2]:
            box.check()
        page.locator(".mbm-toolbar button").last.click()
        page.locator(".mbm-fields table").wait_for()
        page.evaluate(OPENED)
        audit("side by side")
    audit.check()
