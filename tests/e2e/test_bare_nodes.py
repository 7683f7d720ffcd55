"""In Chromium, nodes that lack the container image and the model get both, and then train. Everything is real."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo import tiny_model
from app.demo.job import demo_job
from app.demo.local_nodes import LocalNodes
from app.text import t
from backend.job.mapping import dump_mapping
from tests.docker_daemons import DockerDaemon, docker_daemons, image_registry, in_containers
from tests.e2e.test_journey import go_to_launch, launch, shown_loss, shown_run, wait_for_state, wait_for_step
from tests.local_hub import LocalHub, files_of, local_hub
from tests.ui.browser import RESTING, expect, needs_chromium, until
from tools.browser import Server, logged_in
from tools.programs import NODE_ENVIRONMENT

# In `make test`, tests/runs/test_containers.py pulls, loads and trains in real Docker without the page.
pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1200), needs_chromium]

NODES = 2
IS_CHECKED = """() => {
    const step = document.querySelector("#step-launch");
    return !step.querySelector('[data-act="download"]') && !step.querySelector(".mb-spinner");
}"""


@pytest.fixture(scope="module")
def daemons() -> Iterator[list[DockerDaemon]]:
    with docker_daemons(Path(f"/tmp/megaboard-bare-{os.getpid()}"), NODES) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def hub(cluster: LocalNodes, tiny: Path) -> Iterator[LocalHub]:
    shutil.copytree(tiny, cluster.folder, dirs_exist_ok=True)
    with local_hub() as hub:
        hub.repositories["tiny/model"] = files_of(cluster.folder / tiny_model.MODEL_FOLDER)
        yield hub


def bare_job(
    cluster: LocalNodes, daemons: list[DockerDaemon], hub: LocalHub, image: str, folder: str
) -> dict[str, Any]:
    environment = NODE_ENVIRONMENT.resolve()  # A container sees no link to it.
    machines: Any = in_containers(cluster, daemons, f"{environment}/bin/python", str(environment), sys.base_prefix)
    for host in machines["hosts"]:
        host["environments"]["llamafactory"]["container"]["image"] = image
    job = demo_job(cluster.folder, machines)
    job["model"] |= {"path": folder, "hub": "tiny/model", "hub_endpoint": hub.address}
    job["training"]["max_steps"] = 5000  # The stop comes long before the end, also on a fast machine.
    return job


def test_nodes_without_image_and_model_get_both_and_train(
    server: Server, cluster: LocalNodes, daemons: list[DockerDaemon], hub: LocalHub, tmp_path: Path
) -> None:
    lang = "en"
    with image_registry(daemons[0], tmp_path, "engine:1") as image, logged_in(server) as page:
        page.set_default_timeout(180_000)
        page.goto(f"{server.url}/{lang}/")
        page.wait_for_selector("#step-hardware")
        page.wait_for_function(RESTING)
        job = bare_job(cluster, daemons, hub, image, str(tmp_path / "models" / "tiny"))
        page.evaluate("(text) => Megaboard.wizard.send('fetch', { kind: 'import', text })", dump_mapping(job))
        until(page, "b.fetched?.kind === 'import' && Megaboard.draft.isResting()")
        go_to_launch(page)
        page.click('[data-act="check"]')
        expect(page.locator('[data-act="pull"]')).to_have_text(t(lang, "wizard.launch.pull"))
        page.click('[data-act="pull"]')
        expect(page.locator('[data-act="download"]')).to_have_text(t(lang, "wizard.launch.download"))
        page.click('[data-act="download"]')
        launch_button = page.locator('[data-act="launch"]')
        accept = page.locator('[data-act="accept_warnings"]')
        page.wait_for_function(IS_CHECKED)
        if accept.count():
            accept.check()
        expect(launch_button).to_be_enabled()
        launch(page)
        wait_for_step(page, 10)
        losses = shown_loss(page)["y"]
        assert losses[-1] < losses[0]
        page.goto(f"{server.url}/zh/#runs/{shown_run(page)}")
        page.reload()
        page.get_by_role("button", name=t("zh", "monitor.stop.save")).click()
        wait_for_state(page, t("zh", "monitor.state.stopped"))
        expect(page.locator(".mbm-proof")).to_contain_text(t("zh", "monitor.proof", proved=NODES, nodes=NODES))
    assert [daemon.containers() for daemon in daemons] == [[], []]
