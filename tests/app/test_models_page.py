"""The page of models is made from the measured data, and the data are about today's code."""

import re

import pytest

from app.text import LANGUAGES
from backend.job.presets import gpus, models
from benchmarks.small_models import SMALL_MODELS
from tools import write_models


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_is_what_the_data_give(lang: str) -> None:
    file = write_models.ROOT / "docs" / f"models.{lang}.md"
    assert file.read_text(encoding="utf-8") == write_models.page(lang, write_models.read_data())


def test_every_small_model_is_of_a_type_that_the_page_lists() -> None:
    data = write_models.read_data()
    assert data["peaks"].keys() | data["steps"].keys() <= SMALL_MODELS.keys() <= data["types"].keys()


NUMBERS = {
    "README.md": {
        r"for (\d+) GPU types and \d+ models": "gpus",
        r"GPU types and (\d+) models": "models",
        r"\[(\d+) model types\]": "estimated",
        r"small models of (\d+) families": "peaks",
        r"one real step of (\d+) families": "steps",
    },
    "README.zh.md": {
        r"(\d+) 种 GPU、": "gpus",
        r"种 GPU、(\d+) 个模型": "models",
        r"\[(\d+) 种模型类型\]": "estimated",
        r"(\d+) 个模型族的小模型": "peaks",
        r"对 (\d+) 个模型族各": "steps",
    },
    "docs/estimates.en.md": {
        r"\[(\d+) more\]\(models.en.md\) need": "newer",
        r"one step of a small model of (\d+) families": "steps",
        r"forward operations of (\d+) small models": "flops",
    },
    "docs/estimates.zh.md": {
        r"\[(\d+) 种\]\(models.zh.md\)需要": "newer",
        r"训练了 (\d+) 个模型族的小模型": "steps",
        r"(\d+) 个小模型的前向": "flops",
    },
}
"""Page -> pattern of a number -> what it counts."""


@pytest.mark.parametrize("name", NUMBERS)
def test_other_pages_give_the_numbers_of_the_presets_and_of_the_page(name: str) -> None:
    text = (write_models.ROOT / name).read_text(encoding="utf-8")
    presets = {"gpus": len(gpus().keys() - {"cpu"}), "models": len(models())}
    counted = {**presets, **write_models.count(write_models.read_data())}
    found = {pattern: [int(number) for number in re.findall(pattern, text)] for pattern in NUMBERS[name]}
    assert found == {pattern: [counted[what]] for pattern, what in NUMBERS[name].items()}
