"""The whole journey, everything real: `megaboard demo`, Chromium, two sshd, torchrun, LLaMA-Factory on CPU.

Nothing smaller shows that the parts agree with each other. Two nodes, because each rank imports LLaMA-Factory for
seconds; `make engines` trains on four.
MEGABOARD_PROGRAM names the program of an installed wheel, which is then tested instead of the checkout.
"""

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.demo import tiny_model
from app.text import t
from backend.runs.store import metrics, run_store
from backend.runs.store.store import Store
from tests.nodes import needs_node_environment
from tests.ui.browser import STEPS, box, expect, go, needs_chromium, until
from tests.waiting import wait_for, whole_lines
from tools.browser import PASSWORD, READY_S, VIEWPORT, Server, chromium, without_faults

SSHD = [Path(folder) / "sshd" for folder in ("/usr/sbin", "/usr/local/sbin", "/usr/bin")]
INSTALLED = os.environ.get("MEGABOARD_PROGRAM")
NODES = 2
FIRST_STEP_WITHIN_S = 400
BUILT_WITHIN_S = 1800
"""The first demo of an installed wheel builds the environment of its nodes."""
MANY_STEPS = "500000"
"""The training must outlast a restart of the server, however fast it is and however slow the restart."""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1500 + (BUILT_WITHIN_S if INSTALLED else 0)),
    needs_chromium,
    *([] if INSTALLED else [needs_node_environment]),
    pytest.mark.skipif(not any(path.exists() for path in SSHD), reason="openssh-server is not installed"),
]


class Demo(Server):
    """`megaboard demo` in a process of its own. A test can kill it and start it again."""

    call = ("--lang", "en", "demo", "--nodes", str(NODES))
    program = (INSTALLED,) if INSTALLED else Server.program
    ready_s = BUILT_WITHIN_S if INSTALLED else Server.ready_s

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(home)
        self.folder = home / "demo"

    def fingerprints(self) -> set[str]:
        """Return ssh-keygen's fingerprints of the nodes' host keys."""
        keys = [self.folder / "cluster" / f"host{rank}.pub" for rank in range(NODES)]
        answers = [
            subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True) for key in keys
        ]
        return {answer.stdout.split()[1] for answer in answers}

    def points(self, run: str) -> list[int]:
        """Return the steps of global rank 0 in the server's store, in order of arrival."""
        store = Store(self.folder / "megaboard.db")
        try:
            with store.read() as connection:
                return [point.step for point in metrics.points(connection, run)]
        finally:
            store.close()

    def is_over(self, run: str) -> bool:
        """Return whether the run has ended."""
        with closing(Store(self.folder / "megaboard.db")) as store, store.read() as connection:
            state = run_store.state_of(connection, run)
        return state is not None and state.is_final

    def written_steps(self, run: str) -> int:
        """Return how many steps the job's rank 0 has written on its node. A step may have several lines."""
        files = (self.folder / "cluster" / "run").glob(f"{run}/*/node0/steps.rank0.jsonl")
        return len({json.loads(line)["step"] for file in files for line in whole_lines(file)})

    def marked(self) -> list[int]:
        """Return the living processes of this demo's folder with a run's mark."""
        result = []
        for entry in Path("/proc").iterdir():
            try:
                environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
                is_ours = b"MEGABOARD_RUN=" in environment and str(self.folder) in os.readlink(entry / "cwd")
            except OSError:
                continue
            if is_ours:
                result.append(int(entry.name))
        return result


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Iterator[Demo]:
    demo = Demo(tmp_path_factory.mktemp("journey") / "home")
    demo.start()
    yield demo
    demo.end()
    assert demo.marked() == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@contextmanager
def new_page(browser: Any, demo: Demo) -> Iterator[Any]:
    """Yield a page at the log-in, without a session."""
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(1000 * READY_S)
    page = context.new_page()
    with without_faults(page):
        page.goto(f"{demo.url}/?lang=en")
        yield page
    context.close()


@pytest.fixture(scope="module")
def page(demo, browser):
    """Return the operator's page, logged in, at the wizard."""
    with new_page(browser, demo) as page:
        log_in(page)
        page.wait_for_selector("#step-hardware")
        yield page


@pytest.fixture(scope="module")
def run(demo, page) -> str:
    """Return a run of many steps, launched by the page after the host keys were confirmed, that has begun to train."""
    page.click('.mb-areas a[data-area="wizard"]')
    page.click('.mb-steps a[data-step="training"]')
    set_field(page, "training.max_steps", MANY_STEPS)
    set_field(page, "training.warmup_ratio", "0")  # A share of so many steps is longer than the test.
    go_to_launch(page)
    expect(page.locator('[data-act="launch"]')).to_be_disabled()
    page.click('[data-act="check"]')
    page.wait_for_selector('[data-act="accept"]')
    assert demo.fingerprints() <= set(page.locator("#step-launch code").all_inner_texts())
    page.click('[data-act="accept"]')
    expect(page.locator('[data-act="launch"]')).to_be_enabled()
    launch(page)
    wait_for_step(page, 1)
    return shown_run(page)


def log_in(page, password: str = PASSWORD) -> None:
    page.fill("#password", password)
    page.click("button[type=submit]")


def shown_step(page, step: str) -> None:
    page.wait_for_function(f"() => document.documentElement.dataset.step === '{step}'")


def go_to_launch(page) -> None:
    page.click('.mb-areas a[data-area="wizard"]')
    page.click('.mb-steps a[data-step="launch"]')
    shown_step(page, "launch")


def set_field(page, path: str, value: str) -> None:
    field = page.locator(f"#field-{path.replace('.', '-')} input").first
    field.fill(value)
    field.press("Tab")


def launch(page) -> None:
    """Click Launch after the nodes are checked. The run opens."""
    page.click('[data-act="launch"]')
    page.wait_for_function("() => location.hash.startsWith('#runs/')")


def shown_run(page) -> str:
    """Return the id of the run that the page shows."""
    return page.evaluate("() => decodeURIComponent(location.hash).slice(6)")


def shown_loss(page) -> dict[str, list[float]]:
    return page.evaluate("() => Megaboard.monitor.view().charts.data('loss')")


def wait_for_step(page, count: int) -> None:
    page.wait_for_function(
        f"() => Megaboard.monitor?.view()?.charts?.data('loss')?.x.length >= {count}",
        timeout=1000 * FIRST_STEP_WITHIN_S,
    )


def wait_for_state(page, words: str) -> None:
    expect(page.locator(".mbm-title")).to_contain_text(words)


def save_and_stop(page) -> None:
    page.get_by_role("button", name="Save and stop").click()
    wait_for_state(page, "Stopped")


def test_a_stranger_stays_outside_and_the_operator_comes_in(demo, browser):
    with new_page(browser, demo) as page:
        log_in(page, "not-the-password")
        page.wait_for_selector("[role=alert]")
        log_in(page)
        page.wait_for_selector("#step-hardware")
        shown_step(page, "hardware")


def test_the_wizard_is_walked_with_the_demo_filled_in(demo, page):
    go(page, demo, "hardware")
    for before, step in itertools.pairwise(STEPS):
        page.locator(f"#step-{before}").get_by_role("button", name=re.compile("Next")).click()
        shown_step(page, step)
        assert page.evaluate("() => document.activeElement.id") == f"heading-{step}"
    page.click('.mb-steps a[data-step="plan"]')
    expect(page.locator("#step-plan")).to_contain_text("GiB")
    page.click('.mb-steps a[data-step="training"]')
    set_field(page, "training.max_steps", "0")
    expect(page.locator("#step-training .mb-problem:visible").first).to_contain_text("at least 1")
    set_field(page, "training.max_steps", MANY_STEPS)
    expect(page.locator("#step-training .mb-problem:visible")).to_have_count(0)
    page.click('.mb-steps a[data-step="review"]')
    expect(page.locator("#step-review")).to_contain_text(f"max_steps: {MANY_STEPS}")
    expect(page.locator("#step-review")).to_contain_text("torch.distributed.run")


def test_host_keys_are_confirmed_and_the_run_learns(demo, page, run):
    page.goto(f"{demo.url}/en/#runs/{run}")
    wait_for_step(page, 60)
    observed = shown_loss(page)
    assert observed["x"] == list(range(1, len(observed["x"]) + 1))
    assert sum(observed["y"][-10:]) / 10 < 0.8 * observed["y"][0]
    wait_for_step(page, len(observed["x"]) + 5)
    assert len(demo.marked()) >= NODES


def test_a_killed_server_finds_its_run_and_every_point_again_and_stops_it_with_proof(demo, page, run):
    demo.kill()
    before = demo.written_steps(run)
    # The job trains on without its server.
    wait_for(lambda: demo.written_steps(run) > before + 20)
    assert demo.points(run)[-1] < demo.written_steps(run)
    demo.start()
    page.wait_for_selector("#password")
    log_in(page)
    page.wait_for_url(lambda url: "/login" not in url)  # Else the next address would interrupt the log-in.
    page.goto(f"{demo.url}/en/#runs/{run}")
    wait_for_step(page, before + 20)
    wait_for_state(page, "Running")
    save_and_stop(page)
    expect(page.locator(".mbm-proof")).to_contain_text(f"{NODES} of {NODES} nodes confirmed: 0 processes left")
    written = demo.written_steps(run)
    assert demo.points(run) == list(range(1, written + 1))
    page.wait_for_function(f"() => Megaboard.monitor.view().charts.data('loss').x.at(-1) === {written}")
    saved = list((demo.folder / "output" / run).glob("checkpoint-*"))
    assert any(folder.name == f"checkpoint-{written}" for folder in saved)
    assert demo.marked() == []


def test_the_run_stands_in_the_list_in_chinese_too(demo, page, run):
    if not demo.is_over(run):
        page.goto(f"{demo.url}/en/#runs/{run}")
        save_and_stop(page)
    page.goto(f"{demo.url}/zh/#runs")
    rows = page.locator(".mbm-list tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("已停止")


@pytest.mark.parametrize(
    ("lang", "name"),
    [("en", f"Demo: tiny model on {NODES} local nodes"), ("zh", f"演示：{NODES} 个本地节点训练微型模型")],
    ids=["en", "zh"],
)
def test_the_demo_s_job_is_the_first_recipe_and_brings_back_all_that_another_took(demo, page, lang, name):
    go(page, demo, "hardware", lang)
    expect(page.locator("#mb-recipe optgroup option").first).to_have_text(name)
    choose(page, "qwen2.5-7b-lora")
    expect(box(page, "cluster.nodes")).to_have_value("1")
    choose(page, "demo")
    expect(page.locator(".mb-start-answer .mb-good")).to_be_visible()
    expect(box(page, "cluster.nodes")).to_have_value(str(NODES))
    until(page, "!b.problems.some((one) => ['error', 'missing'].includes(one.severity))")
    model = demo.folder / tiny_model.MODEL_FOLDER
    go(page, demo, "model", lang)
    expect(box(page, "model.path")).to_have_value(str(model))
    go(page, demo, "training", lang)
    expect(box(page, "training.output_dir")).to_have_value(str(model.with_name("output")))


def test_a_demo_started_again_after_another_recipe_says_where_its_own_job_is(demo, page):
    first = demo.log.read_text()
    assert t("en", "cli.demo.filled") in first
    go(page, demo, "hardware")
    choose(page, "qwen2.5-7b-lora")
    demo.end()
    demo.start()
    printed = demo.log.read_text().removeprefix(first)
    assert t("en", "cli.demo.other", name=f"Demo: tiny model on {NODES} local nodes") in printed


def choose(page, recipe: str) -> None:
    page.select_option("#mb-recipe", recipe)
    page.click("#mb-recipe-use")
    until(page, f"b.fetched?.note.key === '{recipe}' && Megaboard.draft.isResting()")
