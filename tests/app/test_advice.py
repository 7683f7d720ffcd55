"""A fix of a plan names only settings that its engine has."""

import dataclasses
import re

import pytest

from app.text import LANGUAGES, render_problem, t
from app.text.plans import all_plans, why_words
from backend.engines import ENGINES
from backend.estimate import estimate, is_close, much_padding, near_the_limit, over_memory
from backend.job.mapping import with_values
from backend.job.presets import intervals
from backend.job.problems import errors
from backend.job.rules import check
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
    the_job = job(TOO_LARGE, engine=engine)
    (warning,) = over_memory(the_job, estimate(the_job))
    assert bool(SIZES.findall(render_problem(lang, warning)["fix"])) == the_job.traits.is_megatron


@pytest.mark.parametrize("lang", LANGUAGES)
def test_padding_is_reported_of_experts_only_where_they_cause_it(lang):
    def fix(*edits, **more):
        the_job = job(*edits, **more)
        return [render_problem(lang, note)["fix"] for note in much_padding(the_job, estimate(the_job))]

    for engine in ("llamafactory-megatron", "llamafactory-zero3"):
        for edits in ({}, {"training.samples": 100_000}):
            (words,) = fix(SHORT, edits, engine=engine)
            assert "EP" not in words
    (words,) = fix(SHORT_MOE)
    assert "EP 1" in words
    (words,) = fix(SHORT_MOE, training__samples=100_000)
    assert "EP 1" in words


@pytest.mark.parametrize(("lang", "words"), [("en", "micro-batch 1 is "), ("zh", "微批 1 慢 ")])
def test_what_another_micro_batch_costs_is_reported_in_words(lang, words):
    moe = {"model.preset": "qwen3-30b-a3b", "training.global_batch_size": 256, "parallel.expert": 8}
    the_job = job(moe, cluster__memory_margin=0.01)
    message = why_words(all_plans(the_job), lang)
    assert words in message
    assert "mbs" not in message


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_plan_whose_interval_holds_the_gpu_s_memory_is_told_the_interval(lang):
    the_job, high = job(TOO_LARGE), intervals().memory["megatron"].high
    result, may_not = estimate(the_job), {"en": "may not fit", "zh": "可能放不下"}[lang]
    need = result.reserved_gib + result.outside_gib
    edges = ((1.01 / high, may_not), (0.95, may_not), (1.03, {"en": "may still fit", "zh": "也有可能放得下"}[lang]))
    for share, word in edges:
        edge = dataclasses.replace(result, gpu_memory_gib=need / share, fits=share <= 1, fit="close")
        (warning,) = near_the_limit(the_job, edge)
        words = render_problem(lang, warning)
        for gib in (result.need_gib_low, result.need_gib_high, need / share):
            assert f"{gib:.1f}" in words["message"]
        assert is_close(edge)
        assert word in t(lang, f"problem.near_the_limit.fix.{'within' if share <= 1 else 'over'}")
        assert words["fix"] == t(lang, f"problem.near_the_limit.fix.{warning.values['case']}", **warning.values)
    for fit in ("fits", "too_large"):
        far = dataclasses.replace(result, fit=fit)
        assert near_the_limit(the_job, far) == []
        assert not is_close(far)
    assert estimate(job(TOO_LARGE, cluster__memory_margin=0.02)).fit in ("fits", "too_large")


def test_a_close_plan_is_told_the_least_change_after_which_it_surely_fits():
    """The edit is legal, and the upper bound of the changed plan is below the GPU's memory."""
    the_job = job(TOO_LARGE, training__micro_batch_size=4)
    need = estimate(the_job).need_gib_low or 0.0
    gpu = {"memory_gib": 1.02 * need, "bf16_tflops": 989.0, "hbm_gb_per_s": 3350.0}
    close = with_values(the_job, {"cluster.gpu": gpu})
    figures = estimate(close)
    (note,) = near_the_limit(close, figures)
    assert figures.fit == "close"
    assert note.values["case"] in ("micro_batch", "recompute", "both")
    changed = with_values(close, note.edit)
    assert errors(check(changed)) == []
    assert estimate(changed).fit == "fits"
