"""The wizard with much to show: long lists, many nodes, and a download of a plan without nodes."""

from collections.abc import Iterator
from typing import Any

import pytest

from backend.job.mapping import dump_mapping
from backend.runs.store.store import Store
from tests.ui.browser import expect, go, needs_chromium, until
from tools.browser import Server, logged_in, served

pytestmark = [pytest.mark.ui, needs_chromium]

NODES = 32
JOB = {
    "version": 1,
    "name": "many-nodes",
    "cluster": {
        "gpu": "h100-80g",
        "nodes": NODES,
        "gpus_per_node": 8,
        "hosts": [{"address": f"gpu-node-{rank:03d}.cluster.example.internal"} for rank in range(NODES)],
        "environments": {"llamafactory": {"python": "/opt/lf/bin/python"}},
    },
    "model": {"preset": "qwen3-vl-8b", "path": "/models/qwen"},
    "training": {"dataset": "mine", "dataset_dir": "/data", "template": "qwen3_vl_nothink", "output_dir": "/runs"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("looks")
    store = Store(home / "megaboard.db")
    store.set_draft(dump_mapping(JOB))
    store.close()
    with served(home) as server:
        yield server


@pytest.fixture(scope="module")
def page(server) -> Iterator[Any]:
    with logged_in(server) as page:
        yield page


def test_32_nodes_take_no_more_of_a_step_than_a_window(page, server):
    go(page, server, "hardware")
    until(page, f"b.data.hosts?.length === {NODES}")
    assert page.locator("#place-hosts table").bounding_box()["height"] > 900
    assert page.locator("#place-hosts").bounding_box()["height"] < 400
    go(page, server, "review")
    chosen = page.get_by_label("Node", exact=True)
    chosen.select_option(label="31 · gpu-node-031.cluster.example.internal")
    page.locator("#place-review pre", has_text="--node_rank 31").wait_for()
    assert chosen.locator("option:checked").inner_text().startswith("31 ·")


def test_a_plan_is_downloaded_before_a_node_is_named(page, server):
    go(page, server, "hardware")
    page.locator("#field-cluster-hosts-lines textarea").fill("")
    until(page, "b.data.hosts?.length === 0")
    go(page, server, "review", "zh")
    with page.expect_download() as started:
        page.get_by_role("link", name="下载 job.yaml").click()
    assert started.value.suggested_filename == "job.yaml"
    assert started.value.path().read_text() == page.evaluate("Megaboard.wizard.payload().data.review.job")


def test_a_list_opens_with_what_stands_before_the_chosen_entry(page, server):
    go(page, server, "model")
    page.locator("#field-model-preset input").click()
    page.wait_for_function("() => document.querySelector('[role=listbox] [aria-selected=true]')")
    page.wait_for_function("""() => {
        const list = document.querySelector('[role=listbox]'), chosen = list.querySelector('[aria-selected=true]');
        const before = chosen.previousElementSibling.getBoundingClientRect();
        return before.top >= list.getBoundingClientRect().top;
    }""")
    page.get_by_role("option", name="Qwen3 32B").click()
    page.locator("#field-model-preset input").blur()


def test_nothing_opens_to_an_empty_part(page, server):
    go(page, server, "plan")
    more = page.locator('[data-more="wizard-strategy-more"]')
    expect(more).to_be_visible()
    page.locator("#field-engine input").click()
    page.get_by_role("option", name="DeepSpeed ZeRO-3 (LLaMA-Factory)").click()
    expect(more).to_be_hidden()
    page.locator("#field-engine input").click()
    page.get_by_role("option", name="Megatron (LLaMA-Factory)").click()
    expect(more).to_be_visible()
