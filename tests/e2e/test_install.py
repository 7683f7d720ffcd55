"""Four sshd nodes without an engine and without a model get both from the page, in Chinese and English, and train.

Everything is real: the shipped CPU set with its hashes, a model from a local hub, LLaMA-Factory and torchrun.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.demo import tiny_model
from app.demo.job import demo_job
from app.demo.local_nodes import LocalNodes
from app.text import t
from backend.job.mapping import dump_mapping
from tests.e2e.test_bare_nodes import IS_CHECKED
from tests.e2e.test_journey import go_to_launch, launch, shown_loss, shown_run, wait_for_state, wait_for_step
from tests.local_hub import files_of, local_hub
from tests.ui.browser import RESTING, expect, needs_chromium, until
from tools.browser import Server, logged_in

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1200), needs_chromium]

NODES = 4
WHEELS = os.environ.get("PIP_FIND_LINKS", "")
"""Where this machine keeps the CPU build of torch, if it does not reach PyTorch's index."""


def bare_job(cluster: LocalNodes, tiny: Path, hub: str, folder: Path) -> dict[str, Any]:
    """Return a job whose nodes have only the data: no engine, and no model."""
    shutil.copytree(tiny, cluster.folder, dirs_exist_ok=True)
    machines = cluster.cluster_mapping("")
    del machines["environments"]
    if WHEELS.startswith("/"):
        machines["install"] = {"find_links": WHEELS}
    job = demo_job(cluster.folder, machines)
    job["model"] |= {"path": str(folder / "models" / "tiny"), "hub": "tiny/model", "hub_endpoint": hub}
    job["training"]["max_steps"] = 5000  # The stop comes long before the end, also on a slow machine.
    return job


def test_fresh_nodes_get_the_engine_and_the_model_from_the_page_and_train(
    server: Server, cluster: LocalNodes, tiny: Path, tmp_path: Path
) -> None:
    with local_hub() as hub, logged_in(server) as page:
        hub.repositories["tiny/model"] = files_of(tiny / tiny_model.MODEL_FOLDER)
        page.set_default_timeout(300_000)
        page.goto(f"{server.url}/zh/")
        page.wait_for_selector("#step-hardware")
        page.wait_for_function(RESTING)
        text = dump_mapping(bare_job(cluster, tiny, hub.address, tmp_path))
        page.evaluate("(text) => Megaboard.wizard.send('fetch', { kind: 'import', text })", text)
        until(page, "b.fetched?.kind === 'import' && Megaboard.draft.isResting()")
        go_to_launch(page)
        page.click('[data-act="install"]')
        installed = page.locator('[data-code="environment_installed"]')
        installed.wait_for()
        installed.locator(".mb-apply").click()
        expect(page.locator('[data-act="check"]')).to_be_enabled()
        page.click('[data-act="check"]')
        page.click('[data-act="download"]')
        page.wait_for_function(IS_CHECKED)
        expect(page.locator('[data-act="launch"]')).to_be_enabled()
        launch(page)
        run = shown_run(page)
        wait_for_step(page, 10)
        losses = shown_loss(page)["y"]
        assert losses[-1] < losses[0]
        page.goto(f"{server.url}/en/#runs/{run}")
        page.reload()
        page.get_by_role("button", name=t("en", "monitor.stop.save")).click()
        wait_for_state(page, t("en", "monitor.state.stopped"))
        expect(page.locator(".mbm-proof")).to_contain_text(t("en", "monitor.proof", proved=NODES, nodes=NODES))
