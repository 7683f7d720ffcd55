"""The demo's recipe can be chosen again in a real browser, and the text that `megaboard demo` prints is true."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo import tiny_model
from tests.nodes import needs_node_environment
from tests.ui.browser import box, expect, go, needs_chromium, until
from tools.browser import Site, logged_in

HAS_SSHD = bool(shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin"))
pytestmark = [
    pytest.mark.ui,
    needs_chromium,
    needs_node_environment,
    pytest.mark.skipif(not HAS_SSHD, reason="openssh-server is not installed"),
]


class Demo(Site):
    """`megaboard demo` in a process of its own."""

    call = ("--lang", "en", "demo", "--nodes", "2")

    def printed(self) -> str:
        """Return all that its starts have printed."""
        return (self.home / "server.log").read_text()


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Iterator[Demo]:
    demo = Demo(tmp_path_factory.mktemp("demo"))
    demo.start()
    yield demo
    demo.end()


@pytest.fixture(scope="module")
def page(demo) -> Iterator[Any]:
    with logged_in(demo) as page:
        yield page


def choose(page: Any, recipe: str) -> None:
    page.select_option("#mb-recipe", recipe)
    page.click("#mb-recipe-use")
    until(page, f"b.fetched?.note.key === '{recipe}' && Megaboard.draft.isResting()")


@pytest.mark.parametrize(
    ("lang", "name"), [("en", "Demo: tiny model on 2 local nodes"), ("zh", "演示：2 个本地节点训练微型模型")]
)
def test_the_demo_s_job_is_the_first_recipe_and_brings_back_all_that_another_took(page, demo, lang, name):
    go(page, demo, "hardware", lang)
    expect(page.locator("#mb-recipe optgroup option").first).to_have_text(name)
    choose(page, "qwen2.5-7b-lora")
    expect(box(page, "cluster.nodes")).to_have_value("1")
    choose(page, "demo")
    expect(page.locator(".mb-start-answer .mb-good")).to_be_visible()
    expect(box(page, "cluster.nodes")).to_have_value("2")
    until(page, "!b.problems.some((one) => ['error', 'missing'].includes(one.severity))")
    model = Path(demo.home, "demo", tiny_model.MODEL_FOLDER)
    go(page, demo, "model", lang)
    expect(box(page, "model.path")).to_have_value(str(model))
    go(page, demo, "training", lang)
    expect(box(page, "training.output_dir")).to_have_value(str(model.with_name("output")))


def test_a_demo_started_again_after_another_recipe_says_where_its_own_job_is(page, demo):
    assert "The page holds the demo's job" in demo.printed()
    assert "last edited" not in demo.printed()
    go(page, demo, "hardware")
    choose(page, "qwen2.5-7b-lora")
    demo.end()
    demo.start()
    assert "The page holds the job that you last edited" in demo.printed()
    assert "“Demo: tiny model on 2 local nodes”" in demo.printed()
