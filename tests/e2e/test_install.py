"""From the page, the shipped CPU set is really installed on two sshd nodes, and LLaMA-Factory trains with it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo.job import demo_job
from app.demo.local_nodes import LocalNodes
from app.text import t
from backend.job.mapping import dump_mapping
from tests.e2e.test_journey import go_to_launch, launch, shown_loss, wait_for_state, wait_for_step
from tests.ui.browser import RESTING, expect, needs_chromium, until
from tools.browser import Site, logged_in

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1200), needs_chromium]

NODES = 2
WHEELS = os.environ.get("PIP_FIND_LINKS", "")
"""Where this machine keeps the CPU build of torch, if it does not reach PyTorch's index."""


@pytest.fixture
def site(cluster: LocalNodes, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    shutil.copy(cluster.folder / "known_hosts", site.home)
    site.start()
    yield site
    site.end()


def job_without_engine(cluster: LocalNodes, tiny: Path) -> dict[str, Any]:
    shutil.copytree(tiny, cluster.folder, dirs_exist_ok=True)
    machines = cluster.cluster_mapping("")
    del machines["environments"]
    if WHEELS.startswith("/"):
        machines["install"] = {"find_links": WHEELS}
    return demo_job(cluster.folder, machines)


def test_nodes_without_an_engine_get_it_from_the_page_and_train(site: Site, cluster: LocalNodes, tiny: Path) -> None:
    with logged_in(site) as page:
        page.set_default_timeout(300_000)
        page.goto(f"{site.url}/zh/")
        page.wait_for_selector("#step-hardware")
        page.wait_for_function(RESTING)
        text = dump_mapping(job_without_engine(cluster, tiny))
        page.evaluate("(text) => Megaboard.wizard.send('fetch', { kind: 'import', text })", text)
        until(page, "b.fetched?.kind === 'import' && Megaboard.draft.isResting()")
        go_to_launch(page)
        page.click('[data-act="install"]')
        installed = page.locator('[data-code="environment_installed"]')
        installed.wait_for()
        installed.locator(".mb-apply").click()
        expect(page.locator('[data-act="check"]')).to_be_enabled()
        page.click('[data-act="check"]')
        expect(page.locator('[data-act="launch"]')).to_be_enabled()
        launch(page)
        wait_for_step(page, 10)
        losses = shown_loss(page)["y"]
        assert losses[-1] < losses[0]
        page.get_by_role("button", name=t("zh", "monitor.stop.save")).click()
        wait_for_state(page, t("zh", "monitor.state.stopped"))
