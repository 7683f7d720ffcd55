"""What to do about a plan names only what its engine has."""

import dataclasses
import re

import pytest

from app.text import LANGUAGES, render_problem
from app.text.plans import all_plans, why_words
from backend.engines import ENGINES
from backend.estimate import estimate, may_not_fit, much_padding, near_the_limit, over_memory
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


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_plan_at_the_edge_of_the_gpu_is_told_how_far_such_estimates_were_off(lang):
    made = job(TOO_LARGE)
    found, may_not = estimate(made), {"en": "may not fit", "zh": "可能放不下"}[lang]
    edges = ((0.85, may_not), (0.95, may_not), (1.03, {"en": "may still fit", "zh": "也有可能放得下"}[lang]))
    for share, word in edges:
        limit = (found.reserved_gib + found.outside_gib) / share
        edge = dataclasses.replace(found, gpu_memory_gib=limit)
        edge = dataclasses.replace(edge, fits=share <= 1)
        (told,) = near_the_limit(made, edge)
        words = render_problem(lang, told)
        assert f"{100 * share:.1f}%" in words["message"]
        assert "28" in words["message"]
        assert "16%" in words["message"]
        assert may_not_fit(made, edge) == (share <= 1)
        assert word in words["fix"]
        settled = job(TOO_LARGE, cluster__memory_margin=0.02)
        assert near_the_limit(settled, edge) == []
        assert not may_not_fit(settled, edge)
    for share in (0.83, 1.1):
        far = dataclasses.replace(found, gpu_memory_gib=(found.reserved_gib + found.outside_gib) / share)
        assert near_the_limit(made, dataclasses.replace(far, fits=share <= 1)) == []
