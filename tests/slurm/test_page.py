"""In Chromium, a user chooses Slurm, downloads the model through the login node, and trains. Everything is real."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.demo import tiny_model
from app.text import t
from backend.job.mapping import dump_mapping, to_mapping
from tests.chaos.lab import SUBNET
from tests.e2e.test_journey import go_to_launch, launch, shown_loss, shown_run, wait_for_state, wait_for_step
from tests.local_hub import LocalHub, files_of, local_hub
from tests.nodes import needs_node_environment
from tests.package_mirror import package_mirror
from tests.slurm.cluster import SlurmCluster
from tests.slurm.server import tiny_job
from tests.ui.browser import RESTING, box, expect, needs_chromium, until
from tools.browser import Server, chromium, logged_in

# `make test` has the same launches on Slurm without the page and LLaMA-Factory (test_runs.py, test_faults.py).
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engines,
    pytest.mark.timeout(900),
    needs_node_environment,
    needs_chromium,
]

SERVER = f"{SUBNET}.254"
WHEELS = os.environ.get("PIP_FIND_LINKS", "")
"""As in test_install.py."""


def ssh_mapping(slurm: SlurmCluster, folder: Path, hub: str) -> dict[str, Any]:
    """Return a job that knows no scheduler yet, and whose model is on a hub."""
    mapping = to_mapping(tiny_job(slurm, folder, steps=3000))
    del mapping["cluster"]["scheduler"]
    mapping["model"] |= {"path": str(folder / "models" / "tiny"), "hub": "tiny/model", "hub_endpoint": hub}
    return mapping


def choose_slurm(page: Any, slurm: SlurmCluster) -> None:
    page.locator("#field-cluster-scheduler-kind").get_by_text("Slurm", exact=True).click()
    expect(box(page, "cluster.hosts.lines")).to_be_hidden()
    box(page, "cluster.scheduler.login.address").fill(slurm.addresses[0])
    box(page, "cluster.scheduler.login.user").fill("root")
    box(page, "cluster.scheduler.login.identity_file").fill(str(slurm.identity_file))
    box(page, "cluster.scheduler.partition").fill("nope")
    box(page, "cluster.scheduler.time_limit").fill("0.5")
    page.wait_for_function(RESTING)


def test_slurm_is_chosen_in_the_wizard_and_trains(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(page: Any, server: Server, hub: LocalHub) -> None:
        import_job(page, server, ssh_mapping(slurm, tmp_path, hub.address))
        hub.repositories["tiny/model"] = files_of(tmp_path / tiny_model.MODEL_FOLDER)
        choose_the_partition(page, slurm)
        download_and_train(page, server, slurm)

    in_browser(slurm, tmp_path, story)


@pytest.mark.engines
def test_a_cluster_without_an_engine_gets_it_through_the_login_node_and_trains(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """The cluster has no internet: the packages come from a mirror."""

    def story(page: Any, server: Server, hub: LocalHub) -> None:
        shutil.copy(slurm.folder / "known_hosts", server.home)
        mapping = to_mapping(tiny_job(slurm, tmp_path, steps=3000, partition="low"))
        del mapping["cluster"]["environments"]
        mapping["cluster"]["install"] = {"index_url": index, **({"find_links": WHEELS} if WHEELS[:1] == "/" else {})}
        mapping["model"] |= {"path": str(tmp_path / "models" / "tiny"), "hub": "tiny/model"}
        mapping["model"]["hub_endpoint"] = hub.address
        hub.repositories["tiny/model"] = files_of(tmp_path / tiny_model.MODEL_FOLDER)
        import_job(page, server, mapping)
        go_to_launch(page)
        page.click('[data-act="install"]')
        installed = page.locator('[data-code="environment_installed"]')
        installed.wait_for(timeout=600_000)
        installed.locator(".mb-apply").click()
        expect(page.locator('[data-act="check"]')).to_be_enabled()
        download_and_train(page, server, slurm)

    listener = slurm.inside(lambda: socket.create_server((SERVER, 0)))
    with package_mirror(listener) as index:
        in_browser(slurm, tmp_path, story)


def in_browser(slurm: SlurmCluster, folder: Path, story: Callable[[Any, Server, LocalHub], None]) -> None:
    """Run `story` with a server, a hub and Chromium in the cluster's network."""

    def run() -> None:
        home = folder / "home"
        home.mkdir()
        server = Server(home)
        server.start()
        try:
            with local_hub(SERVER) as hub, chromium() as browser, logged_in(server, browser) as page:
                story(page, server, hub)
        finally:
            server.end()

    slurm.inside(run)


def import_job(page: Any, server: Server, mapping: dict[str, Any]) -> None:
    page.goto(f"{server.url}/zh/")
    page.wait_for_selector("#step-hardware")
    page.wait_for_function(RESTING)
    page.evaluate("(text) => Megaboard.wizard.send('fetch', { kind: 'import', text })", dump_mapping(mapping))
    until(page, "b.fetched?.kind === 'import' && Megaboard.draft.isResting()")


def choose_the_partition(page: Any, slurm: SlurmCluster) -> None:
    choose_slurm(page, slurm)
    page.click('[data-fetch="partitions"]')
    page.locator('#place-fetch_memory [data-act="accept"]').click()
    expect(page.locator("#place-fetch_memory .mb-found tbody tr")).to_have_count(3)
    go_to_launch(page)
    page.click('[data-act="check"]')
    refused = page.locator("#step-launch .mb-problem").filter(has_text="nope")
    refused.locator(".mb-apply").click()
    expect(box(page, "cluster.scheduler.partition")).to_be_focused()
    page.locator("#place-fetch_memory .mb-apply").filter(has_text="low").click()
    expect(box(page, "cluster.scheduler.partition")).to_have_value("low")
    go_to_launch(page)


def download_and_train(page: Any, server: Server, slurm: SlurmCluster) -> None:
    page.click('[data-act="check"]')
    page.click('[data-act="download"]')
    expect(page.locator('[data-act="launch"]')).to_be_enabled()
    expect(page.locator(".mb-slurm")).to_be_visible()
    launch(page)
    run = shown_run(page)
    wait_for_step(page, 10)
    expect(page.locator(".mbm-scheduler:visible")).to_contain_text("node[1-2]")
    losses = shown_loss(page)["y"]
    assert losses[-1] < losses[0]
    page.goto(f"{server.url}/en/#runs/{run}")
    page.reload()
    page.get_by_role("button", name=t("en", "monitor.stop.save")).click()
    wait_for_state(page, t("en", "monitor.state.stopped"))
    expect(page.locator(".mbm-proof")).to_contain_text("2 of 2 nodes confirmed: 0 processes left")
    assert slurm.jobs() == []
