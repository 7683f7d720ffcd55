"""What to do about a plan names only what its engine has."""

import re

import pytest

from app.i18n import LANGUAGES, render_problem
from app.plan_words import all_plans, why_words
from backend.engines import ENGINES
from backend.estimate import estimate, much_padding, over_memory
from tests.estimate.cases import job

SIZES = re.compile(r"\b(TP|PP|EP)\b", re.ASCII)
TOO_LARGE = {
    "model.preset": "qwen3-32b",
    "cluster.gpu": "rtx4090-24g",
    "cluster.nodes": 1,
    "training.cutoff_len": 65536,
}
SHORT = {"model.preset": "llama-3.1-8b", "training.sample_tokens": 500, "training.micro_batch_size": 4}
SHORT_MOE = {**SHORT, "model.preset": "mixtral-8x7b", "parallel.expert": 8}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("engine", ENGINES)
def test_only_where_there_are_parallel_sizes_a_plan_that_is_too_large_is_told_to_change_them(engine, lang):
    made = job(TOO_LARGE, engine=engine)
    (told,) = over_memory(made, estimate(made))
    assert bool(SIZES.findall(render_problem(lang, told)["fix"])) == made.traits.is_megatron


@pytest.mark.parametrize("lang", LANGUAGES)
def test_padding_is_told_of_experts_only_where_they_cause_it(lang):
    def fix(*edits, **more):
        made = job(*edits, **more)
        return [render_problem(lang, note)["fix"] for note in much_padding(made, estimate(made))]

    for engine in ("llamafactory-megatron", "llamafactory-zero3"):
        for edits in ({}, {"training.samples": 100_000}):
            (words,) = fix(SHORT, edits, engine=engine)
            assert "EP" not in words
    (words,) = fix(SHORT_MOE)
    assert "EP 1" in words
    (words,) = fix(SHORT_MOE, training__samples=100_000)
    assert "EP 1" in words


@pytest.mark.parametrize(("lang", "words"), [("en", "micro-batch 1 is "), ("zh", "微批 1 慢 ")])
def test_what_another_micro_batch_costs_is_said_in_words(lang, words):
    made = job({"model.preset": "qwen3-30b-a3b", "training.global_batch_size": 256, "parallel.expert": 8})
    told = why_words(all_plans(made), lang)
    assert words in told
    assert "mbs" not in told
