"""The page of models is made from the measured data, and the data are about today's code."""

import pytest

from app.text import LANGUAGES
from benchmarks.small_models import SMALL_MODELS
from tools import write_models


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_is_what_the_data_give(lang: str) -> None:
    file = write_models.ROOT / "docs" / f"models.{lang}.md"
    assert file.read_text(encoding="utf-8") == write_models.page(lang, write_models.read_data())


def test_every_small_model_is_of_a_type_that_the_page_lists() -> None:
    data = write_models.read_data()
    assert data["peaks"].keys() | data["steps"].keys() <= SMALL_MODELS.keys() <= data["types"].keys()
