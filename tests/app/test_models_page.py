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


README_NUMBERS = {
    "README.md": (
        r"for (\d+) GPU types and (\d+) models",
        r"\[(\d+) model types\]",
        r"small models of (\d+) families",
        r"one real step of (\d+) families",
    ),
    "README.zh.md": (
        r"(\d+) 种 GPU、(\d+) 个模型",
        r"\[(\d+) 种模型类型\]",
        r"(\d+) 个模型族的小模型",
        r"对 (\d+) 个模型族各",
    ),
}


@pytest.mark.parametrize("name", README_NUMBERS)
def test_the_readme_gives_the_numbers_of_the_presets_and_of_the_page(name: str) -> None:
    text = (write_models.ROOT / name).read_text(encoding="utf-8")
    numbers = write_models.count(write_models.read_data())
    found = [int(number) for pattern in README_NUMBERS[name] for number in re.search(pattern, text).groups()]
    assert found == [
        len(gpus().keys() - {"cpu"}),
        len(models()),
        numbers["estimated"],
        numbers["peaks"],
        numbers["steps"],
    ]
