"""Texts about plans."""

import pytest

from app.text import LANGUAGES, t
from app.text.plans import all_plans, why_words
from tests.estimate.cases import job


@pytest.mark.parametrize("lang", LANGUAGES)
def test_without_a_legal_plan_the_rule_that_refuses_the_engine_is_named(lang: str) -> None:
    refused = job(engine="llamafactory-zero3", model__preset="gpt-oss-20b", cluster__gpu="a100-80g")
    words = why_words(all_plans(refused), lang)
    assert words.startswith(t(lang, "wizard.plan.none.engine"))
    assert "Hopper" in words


@pytest.mark.parametrize("lang", LANGUAGES)
def test_without_a_legal_plan_for_the_batch_another_batch_is_proposed(lang: str) -> None:
    values = {"training__method": "qlora", "training__global_batch_size": 7}
    odd = job(engine="llamafactory-ddp", model__preset="qwen3-8b", **values)
    assert why_words(all_plans(odd), lang).startswith(t(lang, "wizard.plan.none"))
