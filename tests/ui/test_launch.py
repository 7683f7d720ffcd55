"""The check box for warnings on the Launch step, in a real browser with answers of a launch session."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ui.browser import expect, go, needs_chromium
from tools.browser import Server, logged_in, served

pytestmark = [pytest.mark.ui, needs_chromium]

CHECKED = {
    "phase": "checked", "elapsed_s": 0, "version": 7, "complete": True, "same": True, "ready": True, "green": True,
    "warnings": 1, "run": None, "name": "my-run", "nodes": 2, "problems": [], "copy": None, "copied": [0, 0],
    "keys": [], "checks": None, "told": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("launch")) as server:
        yield server


@pytest.fixture(scope="module")
def logged_in_page(server: Server) -> Iterator[Any]:
    with logged_in(server) as page:
        yield page


@pytest.fixture
def page(logged_in_page: Any, server: Server) -> Any:
    """Return the page with the Launch step and an empty element to draw in."""
    go(logged_in_page, server, "launch")
    logged_in_page.evaluate("document.body.append(Object.assign(document.createElement('div'), { id: 'drawn' }))")
    return logged_in_page


def draw(page: Any, **more: Any) -> None:
    payload = json.dumps({"data": {"launch": {**CHECKED, **more}}})
    page.evaluate(f"Megaboard.panels.launch(document.querySelector('#drawn'), {payload})")


def test_warnings_are_accepted_for_the_check_that_showed_them(page: Any) -> None:
    box, button = page.locator("#drawn .mb-accept input"), page.locator('#drawn [data-act="launch"]')
    draw(page)
    expect(page.locator("#drawn .mb-accept")).to_contain_text("1")
    expect(button).to_be_disabled()
    box.check()
    expect(button).to_be_enabled()
    # Another tab checks again: the tick belongs to the warnings of the earlier check.
    draw(page, version=9, warnings=2)
    expect(box).not_to_be_checked()
    expect(button).to_be_disabled()
    box.check()
    with page.expect_request(lambda request: "accepted" in (request.post_data or "")) as request_info:
        button.click()
    assert '"act":"launch","accepted":9' in json.dumps(request_info.value.post_data_json, separators=(",", ":"))
    draw(page, version=11, phase="idle", ready=False, warnings=0)
    expect(box).to_have_count(0)
    expect(button).to_be_disabled()
    draw(page, version=12, warnings=0)
    expect(button).to_be_enabled()


def test_the_run_that_uses_a_node_is_one_click_away(page: Any) -> None:
    run = "20260101-000000-theirs-aaaa"
    taken = {"code": "node_taken", "severity": "error", "at": "", "fix": "Wait.", "run": run}
    draw(page, phase="idle", problems=[{**taken, "message": f"Node a is in use by run {run}."}])
    expect(page.locator("#drawn .mb-problem")).to_contain_text(f"Node a is in use by run {run}.")
    page.locator("#drawn .mb-problem").get_by_role("link", name=run).click()
    expect(page.locator(f'[data-run="{run}"]')).to_be_attached()
    assert page.url.endswith(f"#runs/{run}")
