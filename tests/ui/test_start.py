"""Starting from a recipe or from a YAML in a real browser, in both languages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import begin_anew, box, expect, go, needs_chromium, until
from tools.browser import Server, logged_in, served

pytestmark = [pytest.mark.ui, needs_chromium]

YAML = """model_name_or_path: /models/Qwen3-VL-8B-Instruct
stage: sft
do_train: true
finetuning_type: full
template: qwen3_vl
cutoff_len: 1024
learning_rate: 2e-5
overwrite_output_dir: true
tensor_model_parallel_size: 4
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("start")) as server:
        yield server


@pytest.fixture(scope="module")
def page(server) -> Iterator[Any]:
    with logged_in(server) as page:
        yield page


@pytest.fixture(autouse=True)
def _anew(page) -> None:
    begin_anew(page)


def test_a_recipe_fills_in_machines_and_plan(page, server):
    go(page, server, "hardware")
    page.select_option("#mb-recipe", "qwen3-32b-zero3")
    page.click("#mb-recipe-use")
    expect(page.locator(".mb-start-answer .mb-good")).to_be_visible()
    expect(box(page, "cluster.nodes")).to_have_value("2")
    until(page, "b.summary !== undefined && !b.problems.some((one) => one.severity === 'error')")


@pytest.mark.parametrize(("lang", "dropped"), [("en", "dropped"), ("zh", "丢弃")])
def test_a_yaml_is_imported_with_a_report_of_what_did_not_stay(page, server, tmp_path: Path, lang: str, dropped: str):
    go(page, server, "hardware", lang)
    page.click(".mb-import summary")
    (tmp_path / "sft.yaml").write_text(YAML)
    page.set_input_files("#mb-import-file", str(tmp_path / "sft.yaml"))
    expect(page.locator("#mb-import-text")).to_have_value(YAML)
    page.click("#mb-import-do")
    rows = page.locator(".mb-import-report tbody tr")
    expect(rows.filter(has_text="overwrite_output_dir")).to_contain_text(dropped)
    expect(rows.filter(has_text="qwen3_vl_nothink")).to_have_count(1)
    assert rows.filter(has_text="cutoff_len").count() == 0
    page.fill("#mb-import-text", YAML.replace("sft", "ppo"))
    page.click("#mb-import-do")
    expect(page.locator(".mb-start-answer .mb-problem")).to_contain_text("ppo")


def test_a_preset_of_ones_own_is_kept_replaced_downloaded_used_and_deleted(page, server, tmp_path: Path):
    go(page, server, "hardware")
    name, answer = "七天 8B", page.locator(".mb-start-answer")
    page.fill("#mb-preset-name", name)
    page.click("#mb-preset-save")
    expect(answer.locator(".mb-good")).to_contain_text(name)
    box(page, "cluster.nodes").fill("3")
    until(page, "b.data.clusters && b.data.presets.length === 1")
    page.click("#mb-preset-save")
    expect(answer.locator('[data-code="preset_exists"]')).to_be_visible()
    page.click("#mb-preset-replace")
    expect(answer.locator(".mb-good")).to_contain_text(name)
    box(page, "cluster.nodes").fill("5")
    page.select_option("#mb-recipe", f"own:{name}")
    page.click("#mb-recipe-use")
    expect(box(page, "cluster.nodes")).to_have_value("3")
    with page.expect_download() as download:
        page.click("#mb-preset-get")
    assert download.value.suggested_filename == f"{name}.yaml"
    copy = tmp_path / "copy.yaml"
    download.value.save_as(copy)
    page.click(".mb-import summary")
    page.set_input_files("#mb-import-file", str(copy))
    expect(page.locator("#mb-import-text")).to_have_value(copy.read_text())
    page.click("#mb-import-keep")
    expect(page.locator("#mb-recipe optgroup").first.locator("option")).to_have_count(2)
    page.click("#mb-preset-delete")
    page.click("#mb-preset-delete-do")
    expect(page.locator("#mb-recipe optgroup").first.locator("option")).to_have_text(["copy"])
    expect(page.locator("#mb-preset-delete")).to_be_hidden()


def test_a_cluster_is_kept_under_a_name_chosen_again_and_deleted(page, server):
    go(page, server, "hardware")
    chip, answer = page.locator('[data-panel="own_clusters"] button[data-key="lab"]'), page.locator(".mb-start-answer")
    heading = page.get_by_text("Your clusters")
    expect(heading).to_have_count(0)
    box(page, "cluster.nodes").fill("3")
    page.fill("#mb-cluster-name", "lab")
    page.click("#mb-cluster-save")
    expect(answer.locator(".mb-good")).to_contain_text("cluster: lab")
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(heading).to_be_visible()
    box(page, "cluster.nodes").fill("5")
    expect(chip).to_have_attribute("aria-pressed", "false")
    page.click("#mb-cluster-save")
    expect(answer.locator('[data-code="cluster_exists"]')).to_be_visible()
    chip.click()
    expect(box(page, "cluster.nodes")).to_have_value("3")
    page.click('[data-panel="own_clusters"] [aria-label="Delete lab"]')
    page.click("#mb-preset-delete-do")
    expect(chip).to_have_count(0)
    expect(box(page, "cluster.nodes")).to_have_value("3")


def test_a_learning_rate_follows_another_batch_by_one_click(page, server):
    go(page, server, "training", "zh")
    box(page, "training.learning_rate").fill("3e-5")
    until(page, "!b.problems.some((one) => one.code === 'learning_rate_batch')")
    go(page, server, "plan", "zh")
    before = page.evaluate("Megaboard.wizard.payload().summary.global_batch")
    steps = box(page, "training.gradient_accumulation_steps")
    steps.fill(str(4 * int(steps.input_value())))
    offer = page.locator("#mb-carrier [data-code='learning_rate_batch']")
    expect(offer).to_contain_text(f"{4 * before}")
    offer.get_by_text("平方根").last.click()
    expect(offer).to_have_count(0)
    go(page, server, "training", "zh")
    expect(box(page, "training.learning_rate")).to_have_value("6e-5")


def test_review_compares_with_the_recommended_plan_and_says_what_it_costs(page, server):
    go(page, server, "hardware")
    page.select_option("#mb-recipe", "qwen3-vl-8b-pp4")
    page.click("#mb-recipe-use")
    expect(page.locator(".mb-start-answer .mb-good")).to_be_visible()
    go(page, server, "review")
    locator = page.locator(".mb-difference-told")
    locator.locator(".mb-difference-figures").wait_for()
    expect(locator.locator(".mb-difference-figures tbody tr").filter(has_text="Memory per GPU")).to_contain_text("GiB")
    expect(page.locator("#mb-difference-base option")).to_have_text(["the recommended plan"])
    path = locator.locator(".mb-difference-fields tbody small").first.inner_text()
    assert path.partition(".")[0] in ("engine", "parallel", "training")
    locator.get_by_role("button", name="config.yaml").click()
    expect(locator.locator("pre .mb-diff[data-kind='added']").first).to_be_visible()
