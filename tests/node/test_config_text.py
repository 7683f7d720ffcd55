"""Why a text is no config.json is said with its place."""

import json

import pytest

from app.text import LANGUAGES, t
from backend.node.config_text import config_fault

CONFIG = {"model_type": "qwen3", "layers": [1, 2], "tied": True, "none": None, "name": 'a "b" 中', "scale": 1.5}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_configuration_that_is_cut_anywhere_is_called_truncated(indent: int | None) -> None:
    text = json.dumps(CONFIG, indent=indent, ensure_ascii=False)
    assert config_fault(text) is None
    faults = [(config_fault(text[:end]) or {"fault": ""})["fault"] for end in range(len(text))]
    assert set(faults) == {"config_empty", "config_truncated"}


def test_the_place_of_a_cut_is_the_end_of_the_text() -> None:
    assert config_fault('{\n "a": [1,\n  "b') == {"fault": "config_truncated", "line": 3, "column": 5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" \n", ("config_empty", 1, 1)),
        ('{"a": 1,\n "b" 2}', ("config_not_json", 2, 6)),
        ("version https://git-lfs.github.com/spec/v1", ("config_not_json", 1, 1)),
        ("[1]", ("config_not_object", 1, 1)),
        ("null", ("config_not_object", 1, 1)),
        ("[" * 100_000, ("config_nested", 1, 1)),
    ],
)
def test_what_is_no_configuration_is_named_with_its_place(text: str, expected: tuple[str, int, int]) -> None:
    fault = config_fault(text)
    assert fault is not None
    assert (fault["fault"], fault["line"], fault["column"]) == expected
    for lang in LANGUAGES:
        assert t(lang, f"problem.{fault['fault']}", **fault)
