"""Beginning from a recipe or from a YAML in a real browser, in both languages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import Site, box, expect, go, logged_in, needs_chromium, served, until

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
def site(tmp_path_factory) -> Iterator[Site]:
    with served(tmp_path_factory.mktemp("start")) as site:
        yield site


@pytest.fixture(scope="module")
def page(site) -> Iterator[Any]:
    with logged_in(site) as page:
        yield page


def test_a_recipe_fills_in_machines_and_plan(page, site):
    go(page, site, "hardware")
    page.select_option("#mb-recipe", "qwen3-32b-zero3")
    page.click("#mb-recipe-use")
    expect(page.locator(".mb-start-answer .mb-good")).to_be_visible()
    expect(box(page, "cluster.nodes")).to_have_value("2")
    until(page, "b.summary !== undefined && !b.problems.some((one) => one.severity === 'error')")


@pytest.mark.parametrize(("lang", "dropped"), [("en", "dropped"), ("zh", "丢弃")])
def test_a_yaml_is_imported_with_a_report_of_what_did_not_stay(page, site, tmp_path: Path, lang: str, dropped: str):
    go(page, site, "hardware", lang)
    page.click(".mb-import summary")
    (tmp_path / "sft.yaml").write_text(YAML)
    page.set_input_files("#mb-import-file", str(tmp_path / "sft.yaml"))
    expect(page.locator("#mb-import-text")).to_have_value(YAML)
    page.click("#mb-import-do")
    rows = page.locator(".mb-import-report tbody tr")
    expect(rows.filter(has_text="overwrite_output_dir")).to_contain_text(dropped)
    expect(rows.filter(has_text="qwen3_vl_nothink")).to_have_count(1)
    assert rows.filter(has_text="cutoff_len").count() == 0
    page.fill("#mb-import-text", YAML.replace("sft", "kto"))
    page.click("#mb-import-do")
    expect(page.locator(".mb-start-answer .mb-problem")).to_contain_text("kto")
