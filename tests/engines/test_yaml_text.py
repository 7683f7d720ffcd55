"""PyYAML and OmegaConf read the YAML equally (OmegaConf itself: test_real_parser.py)."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from backend.engines.yaml_text import to_yaml

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_what_is_written_is_read_back_in_its_order(mapping: dict[str, object]) -> None:
    loaded = yaml.safe_load(to_yaml(mapping))
    assert loaded == mapping
    assert list(loaded) == list(mapping)


def test_small_rates_are_numbers_to_every_reader() -> None:
    assert to_yaml({"learning_rate": 2e-5}) == "learning_rate: 2.0e-05\n"


def test_words_that_a_reader_could_take_for_something_else_are_quoted() -> None:
    for word in ("no", "null", "true", "1e3", "2024-01-01", "0x1f", "-", "${a}", "a: b", "用户", "", "~", "a b"):
        assert to_yaml({"key": word}).rstrip() in (f'key: "{word}"', f"key: '{word}'")
    for word in ("none", "tensorboard", "/shared/runs", "q_proj", "qwen3-8b.v1"):
        assert to_yaml({"key": word}) == f"key: {word}\n"


def test_long_values_stay_on_one_line() -> None:
    assert to_yaml({"key": "word " * 100}).count("\n") == 1
    assert not math.isnan(yaml.safe_load(to_yaml({"rate": 1e-30}))["rate"])
