"""Take the screenshots of the READMEs, docs/images/*.png, from the real page: a plan, and the demo's running job.

python -m tools.screenshots        (a few minutes; needs what `make demo` needs, and Debian's chromium)
"""

import tempfile
from pathlib import Path
from typing import Any

from backend.job.mapping import dump_mapping
from backend.runs.store.store import Store
from tools.browser import CHECKOUT, Server, chromium, log_in

IMAGES = CHECKOUT / "docs" / "images"
SIZE = {"width": 1280, "height": 940}
SHOWN_STEPS = 60
PLANNED = {
    "version": 1,
    "name": "qwen3-30b-a3b-sft",
    "cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8},
    "model": {"preset": "qwen3-30b-a3b"},
    "training": {"global_batch_size": 256, "samples": 100_000},
    "engine": "llamafactory-megatron",
    "parallel": {"expert": 8},
}


class Demo(Server):
    """Run `megaboard demo` in its own process."""

    call = ("demo",)


def main() -> None:
    """Take all screenshots."""
    IMAGES.mkdir(exist_ok=True)
    with chromium() as browser:
        for kind, take in ((Server, plan), (Demo, run)):
            with tempfile.TemporaryDirectory() as home:
                server = kind(Path(home))
                if kind is Server:
                    store = Store(server.home / "megaboard.db")
                    store.set_draft(dump_mapping(PLANNED))
                    store.close()
                server.start()
                try:
                    take(browser, server)
                finally:
                    server.end()


def plan(browser: Any, server: Server) -> None:
    """Take the Plan step in both languages."""
    for lang in ("en", "zh"):
        page = open_page(browser, server, lang)
        page.goto(f"{server.url}/{lang}/#plan")
        page.reload()
        page.wait_for_selector(".mb-plans tr[data-index]")
        page.evaluate("() => document.querySelector('.mb-plans').closest('.mb-card').scrollIntoView()")
        save(page, f"plan.{lang}")


def run(browser: Any, server: Server) -> None:
    """Launch the demo's job as a user does, and take its screenshots after some steps."""
    page = open_page(browser, server, "en")
    page.goto(f"{server.url}/en/#launch")
    page.reload()
    for act in ("check", "accept", "launch"):
        page.wait_for_selector(f'[data-act="{act}"]:enabled').click()
    page.wait_for_function("() => location.hash.startsWith('#runs/')")
    view = page.evaluate("() => location.hash")
    page.wait_for_function(
        f"() => Megaboard.monitor?.view()?.charts?.data('loss')?.x.length >= {SHOWN_STEPS}", timeout=600_000
    )
    save(page, "run.en")
    page = open_page(browser, server, "zh")
    page.goto(f"{server.url}/zh/{view}")
    page.reload()
    page.wait_for_function("() => Megaboard.monitor?.view()?.charts?.data('loss')?.x.length > 0")
    save(page, "run.zh")


def open_page(browser: Any, server: Server, lang: str) -> Any:
    """Return a page of the server after the log-in."""
    page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
    page.set_default_timeout(180_000)
    log_in(page, server, lang)
    return page


def save(page: Any, name: str) -> None:
    """Take a screenshot after everything is drawn."""
    page.wait_for_timeout(2000)
    page.screenshot(path=IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
