"""The image of the Dockerfile, started by compose.yaml: a run and the password survive a restart of the container."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.job import demo_job
from app.demo.local_nodes import LocalNodes
from backend.job.mapping import dump_mapping
from tests.e2e.test_journey import (
    MANY_STEPS,
    go_to_launch,
    launch,
    log_in,
    set_field,
    shown_run,
    wait_for_state,
    wait_for_step,
)
from tests.nodes import needs_node_environment, ssh_nodes
from tests.ui.browser import RESTING, expect, needs_chromium, until
from tests.waiting import wait_for
from tools.browser import CHECKOUT, READY_S, VIEWPORT, Server, chromium, without_faults
from tools.programs import NODE_PYTHON

NODES = 2
UID = os.getuid() or 1000
KEYS = "/home/megaboard/.ssh"
IMAGE = re.search(r"^FROM (\S+)", (CHECKOUT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)


def _succeeds(*command: str) -> bool:
    return bool(shutil.which(command[0])) and not subprocess.run(command, capture_output=True, check=False).returncode


COMPOSE = ["docker", "compose"] if _succeeds("docker", "compose", "version") else ["docker-compose"]


def _missing() -> str:
    """Return why the container cannot be built and run here, or nothing."""
    if not _succeeds("docker", "info"):
        return "no Docker daemon answers"
    if not IMAGE or not _succeeds("docker", "image", "inspect", IMAGE[1]):
        return "the base image of the Dockerfile is not here: docker pull"
    return "" if _succeeds(*COMPOSE, "version") else "Docker Compose is not installed"


pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
    needs_chromium,
    needs_node_environment,
    pytest.mark.skipif(bool(MISSING := _missing()), reason=MISSING),
]


class Container(Server):
    """The service of compose.yaml, with its own project name, port and folder of SSH keys."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.keys = home / "ssh"
        self.environment |= {
            "COMPOSE_PROJECT_NAME": f"megaboard-test-{os.getpid()}",
            "MEGABOARD_UID": str(UID),
            "MEGABOARD_PORT": str(self.port),
            "MEGABOARD_SSH": str(self.keys),
        }

    def compose(self, *words: str) -> str:
        command = [*COMPOSE, *words]
        done = subprocess.run(command, cwd=CHECKOUT, env=self.environment, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    def shell(self, command: str) -> str:
        return self.compose("exec", "-T", "megaboard", "sh", "-c", command)

    def addresses(self) -> list[str]:
        """Return the page's address, once for each start of the server."""
        return re.findall(r"http://mb-\S+", self.compose("logs"))

    @property
    def url(self) -> str:
        return self.addresses()[-1].rstrip("/")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    with ssh_nodes(tmp_path_factory.mktemp("cluster"), NODES) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory, cluster: LocalNodes) -> Iterator[Container]:
    container = Container(tmp_path_factory.mktemp("container"))
    container.keys.mkdir(mode=0o700)
    shutil.copy(cluster.identity_file, container.keys)
    for path in (container.keys, *container.keys.iterdir()):
        os.chown(path, UID, -1)
    try:
        container.compose("up", "--build", "--detach")
        wait_for(container.addresses, READY_S)
        yield container
    finally:
        container.compose("down", "--volumes", "--rmi", "local")


def test_the_server_runs_without_privileges_and_writes_only_data(container: Container) -> None:
    assert container.shell("id -u").strip() == str(UID)
    assert "CapEff:\t0000000000000000" in container.shell("cat /proc/self/status")
    assert container.shell("touch /x 2>&1 || touch ~/x 2>&1 || touch ~/.ssh/x 2>&1 || echo refused").endswith(
        "refused\n"
    )
    assert container.shell("megaboard status").strip()


def test_a_run_and_the_password_survive_a_restart(container: Container, cluster: LocalNodes, tiny: Path) -> None:
    shutil.copytree(tiny, cluster.folder, dirs_exist_ok=True)
    job = demo_job(cluster.folder, cluster.cluster_mapping(str(NODE_PYTHON)))
    for host in job["cluster"]["hosts"]:
        host["identity_file"] = f"{KEYS}/{cluster.identity_file.name}"
    password = container.shell("cat /data/password-*.txt").strip()
    with chromium() as browser:
        page = browser.new_context(viewport=VIEWPORT).new_page()
        page.set_default_timeout(1000 * READY_S)
        with without_faults(page):
            page.goto(f"{container.url}/?lang=en")
            log_in(page, password)
            page.wait_for_selector("#step-hardware")
            page.wait_for_function(RESTING)
            page.evaluate("(text) => Megaboard.wizard.send('fetch', { kind: 'import', text })", dump_mapping(job))
            until(page, "b.fetched?.kind === 'import' && Megaboard.draft.isResting()")
            page.click('.mb-steps a[data-step="training"]')
            set_field(page, "training.max_steps", MANY_STEPS)
            go_to_launch(page)
            page.click('[data-act="check"]')
            page.click('[data-act="accept"]')
            expect(page.locator('[data-act="launch"]')).to_be_enabled()
            launch(page)
            wait_for_step(page, 20)
            run = shown_run(page)
            starts = len(container.addresses())
            container.compose("restart")
            wait_for(lambda: len(container.addresses()) > starts, READY_S)
            page.goto(f"{container.url}/?lang=en")
            log_in(page, password)
            page.wait_for_url(lambda url: "/login" not in url)
            page.goto(f"{container.url}/en/#runs/{run}")
            wait_for_state(page, "Running")
            wait_for_step(page, 60)
            page.get_by_role("button", name="Save and stop").click()
            wait_for_state(page, "Stopped")
            expect(page.locator(".mbm-proof")).to_contain_text("0 processes left")
