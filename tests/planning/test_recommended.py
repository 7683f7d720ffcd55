"""Plans that surely fit come first, and the first of them is recommended. Faster ones that may not fit follow."""

from dataclasses import replace

import numpy as np
import pytest

from app.text import LANGUAGES, t
from app.text.plans import doubtful_words, need_words, percent, plan_name, plan_sizes, why_words
from app.wizard.draft_state import read
from app.wizard.plans import plans_of
from backend.estimate import surely_fits_gib
from backend.estimate.time.calibrated import training_of
from backend.job.cluster import Calibration, Cluster, Host
from backend.job.job import Job, Model
from backend.job.mapping import to_mapping, with_values
from backend.job.presets import intervals
from backend.planning import (
    enumerate_plans,
    is_tight,
    recommended,
    strategies,
    surely_fit_gib,
    tight_and_faster,
    warned_engines,
)
from backend.planning.recommended import HEADROOM

ENGINES = ("llamafactory-megatron",)


def job_on(gpu="h100-80g", nodes=2, model="llama-3.1-8b", **cluster):
    return Job(cluster=Cluster(gpu=gpu, nodes=nodes, gpus_per_node=8, **cluster), model=Model(preset=model))


def shares(plans, rank):
    return float(plans.figures_of(slice(rank, rank + 1)).need_gib[0]) / plans.gpu.memory_gib


def test_plans_that_surely_fit_come_before_faster_ones_that_may_not_and_each_group_is_sorted_by_speed():
    plans = enumerate_plans(job_on(), ENGINES)
    assert recommended(plans) == 0
    figures = plans.figures_of(slice(None))
    sure, fitting = plans.surely_fitting, plans.fitting
    assert 0 < sure < fitting < len(plans)
    most = plans.gpu.memory_gib / intervals().memory["unknown_lengths_megatron"].high
    assert figures.need_gib[:sure].max() <= most < figures.need_gib[sure:fitting].min()
    assert not figures.fits[fitting:].any()
    for group in (slice(sure), slice(sure, fitting)):
        assert (np.diff(figures.iteration_s[group]) >= 0).all()
    assert figures.iteration_s[sure] < figures.iteration_s[0]
    assert [is_tight(plans, rank) for rank in (sure - 1, sure, fitting - 1, fitting)] == [False, True, True, False]


def test_the_faster_plans_that_may_not_fit_are_counted():
    plans = enumerate_plans(job_on(), ENGINES)
    figures = plans.figures_of(slice(plans.surely_fitting, plans.fitting))
    for rank in (0, plans.surely_fitting // 2):
        time, need = (getattr(plans.figures_of(slice(rank, rank + 1)), name)[0] for name in ("iteration_s", "need_gib"))
        faster = (figures.iteration_s < time) | (figures.iteration_s == time) & (figures.need_gib < need)
        assert tight_and_faster(plans, rank) == np.count_nonzero(faster)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_first_sentence_names_the_recommended_plan_and_the_next_the_faster_ones_that_may_not_fit(lang):
    plans = enumerate_plans(job_on(), ENGINES)
    rank, doubted = recommended(plans), plans[plans.surely_fitting]
    assert plans[rank].estimate.fit == "fits"
    first = why_words(plans, lang).split("。" if lang == "zh" else ". ")[0]
    assert named(plans[rank], "wizard.plan.best", lang) in first
    assert need_words(doubted.estimate, lang) not in first
    (doubtful,) = doubtful_words(plans, rank, lang)
    assert named(doubted, "wizard.plan.doubtful", lang) in doubtful
    assert need_words(doubted.estimate, lang) in doubtful
    faster = doubted.estimate.tokens_per_s_per_gpu / plans[rank].estimate.tokens_per_s_per_gpu - 1
    assert percent(faster) in doubtful


@pytest.mark.parametrize("lang", LANGUAGES)
def test_where_no_upper_bound_fits_the_first_sentence_says_that_the_plan_may_fit(lang):
    plans = enumerate_plans(job_on(nodes=1, model="qwen3-32b"), ENGINES)
    rank = recommended(plans)
    assert plans[rank].estimate.fit == "close"
    values = dict.fromkeys(("engine", "plan", "batch", "need", "gpu", "speed"), "|")
    beginning, *_ = t(lang, "wizard.plan.best.close", **values).split("|")
    assert why_words(plans, lang).startswith(beginning)
    assert list(doubtful_words(plans, rank, lang)) == [t(lang, "wizard.plan.close", full=percent(shares(plans, rank)))]


def named(plan, key, lang):
    """Return the plan's engine, name and micro-batch as a sentence writes them."""
    engine, name = t(lang, f"wizard.engine.{plan.job.engine}"), plan_name(plan_sizes(plan.job))
    batch = plan.job.training.micro_batch_size
    return {
        ("wizard.plan.best", "en"): f"{engine} with {name}, micro-batch {batch}",
        ("wizard.plan.doubtful", "en"): f"{engine} {name}, micro-batch {batch}",
    }.get((key, lang), f"{engine} {name}（微批 {batch}）")


def test_the_recommended_plan_does_not_depend_on_the_engine_that_the_draft_has_now():
    job = job_on(nodes=4)
    engines = ("llamafactory-megatron", "llamafactory-fsdp", "llamafactory-zero3")
    plans = [enumerate_plans(replace(job, engine=engine), engines) for engine in engines]
    assert {recommended(each) for each in plans} == {recommended(plans[0])}
    bounds = surely_fit_gib(plans[0])
    assert all(surely_fit_gib(each) == bounds for each in plans)
    high = {name: interval.high for name, interval in intervals().memory.items()}
    assert bounds["llamafactory-megatron"] == pytest.approx(plans[0].gpu.memory_gib / high["unknown_lengths_megatron"])
    assert bounds["llamafactory-fsdp"] == pytest.approx(plans[0].gpu.memory_gib / high["unknown_lengths_hugging_face"])


def test_a_margin_decides_instead():
    plans = enumerate_plans(job_on(memory_margin=0.01), ENGINES)
    assert shares(plans, 0) > 1 - HEADROOM
    assert recommended(plans) == 0
    assert list(doubtful_words(plans, 0, "en")) == []


def test_a_plan_with_calibrated_memory_may_fill_as_much_as_its_own_interval_leaves():
    known = intervals().memory
    training = training_of(job_on())
    run = Calibration(memory_ratio=1.06, engine="llamafactory-megatron", training=training)
    calibrated = job_on(calibration=run)
    room = surely_fits_gib(calibrated, 80.0), surely_fits_gib(job_on(), 80.0)
    assert room[0] == pytest.approx(80 / known["calibrated_megatron"].high)
    assert room[0] >= room[1]


def test_where_no_plan_leaves_room_the_fastest_is_taken():
    plans = enumerate_plans(job_on(nodes=1, model="qwen3-32b"), ENGINES)
    assert recommended(plans) == 0
    assert is_tight(plans, 0)


def test_a_strategy_s_best_plan_leaves_room_too():
    job = job_on(nodes=4, model="qwen3-8b")
    row = next(row for row in strategies(job) if row.key == "megatron")
    assert row.memory_gib <= (1 - HEADROOM) * row.best.gpu.memory_gib


def test_where_speeds_are_unknown_no_plan_is_recommended_that_may_not_fit_while_another_fits():
    """CPU nodes, whose speed in fp32 is not known. Without times, plans that offload come last."""
    job = job_on(gpu="cpu", nodes=1, model="qwen3-0.6b", hosts=(Host(address="a", gpu_memory_gib=13.0),))
    job = with_values(job, {"training.precision": "fp32", "training.packing": True})
    plans = enumerate_plans(job)
    assert plans.figures_of(slice(0, 1)).iteration_s is None
    doubted = plans[plans.surely_fitting]
    assert recommended(plans) == 0
    assert plans[0].estimate.fit == "fits"
    assert doubted.estimate.fit == "close"
    assert f"{need_words(plans[0].estimate, 'en')} of" in why_words(plans, "en")
    assert need_words(doubted.estimate, "en") in " ".join(doubtful_words(plans, 0, "en"))


@pytest.mark.parametrize("gib", [12.0, 16.0])
def test_on_cpu_nodes_engines_that_the_rules_warn_of_come_after_the_others_that_fit(gib):
    """FSDP shards nothing there: its figures are too low."""
    hosts = tuple(Host(address=f"n{number}", gpu_memory_gib=gib) for number in range(4))
    values = {"cluster.gpus_per_node": 1, "training.precision": "fp32", "training.cutoff_len": 64}
    job = with_values(job_on(gpu="cpu", nodes=4, model="qwen3-0.6b", hosts=hosts), values)
    plans = enumerate_plans(job)
    engines = [plans.spaces[index].job.engine for index in plans.engine]
    assert [name.split("-", 1)[1] for name in warned_engines(plans)] == ["fsdp"]
    warned = np.isin(engines, warned_engines(plans))
    sure, fitting = plans.surely_fitting, plans.fitting
    assert 0 < warned[:sure].sum() < sure, "else this shows nothing"
    for group in (slice(sure), slice(sure, fitting)):
        assert (np.diff(warned[group].astype(int)) >= 0).all()
    assert recommended(plans) == 0
    assert {problem.code for problem in plans[0].warnings}.isdisjoint({"fsdp_on_cpu"})
    (row,) = (row for row in strategies(plans.job) if row.recommended)
    assert {problem.code for problem in row.best.warnings}.isdisjoint({"fsdp_on_cpu"})


@pytest.mark.parametrize(
    ("gpu", "model", "gpu_memory_gib"),
    [
        *(("h100-80g", model, gib) for model in ("llama-3.1-8b", "qwen3-14b") for gib in (30.0, 45.0, 70.0)),
        *(("cpu", "qwen3-0.6b", gib) for gib in (6.0, 8.0, 15.0)),
    ],
)
def test_a_recommended_plan_is_never_close_where_one_fits(gpu, model, gpu_memory_gib):
    job = job_on(gpu=gpu, nodes=1, model=model, hosts=(Host(address="a", gpu_memory_gib=gpu_memory_gib),))
    engines = ("llamafactory-megatron", "llamafactory-zero3", "llamafactory-fsdp", "llamafactory-ddp")
    plans = enumerate_plans(job, engines)
    figures, limits = plans.figures_of(slice(None)), surely_fit_gib(plans)
    engine_of = plans.at(slice(None))[0]
    names = [space.job.engine for space in plans.spaces]
    sure = figures.fits & (figures.need_gib <= np.array([limits[name] for name in names])[engine_of])
    for engine in (None, *range(len(names))):
        rank = recommended(plans, engine)
        mine = sure if engine is None else sure & (engine_of == engine)
        if rank is not None and mine.any():
            assert plans[rank].estimate.fit == "fits"
    rows = {row.key: row for row in strategies(job) if row.best}
    chosen = next((row for row in rows.values() if row.recommended), None)
    of_kind = [row for row in rows.values() if row.method == "full"]
    if chosen and chosen.method == "full" and any(row.best.estimate.fit == "fits" for row in of_kind):
        assert chosen.best.estimate.fit == "fits"


def test_where_nothing_fits_the_first_is_the_first():
    assert recommended(enumerate_plans(job_on(gpu="rtx4090-24g", nodes=1, model="qwen3-32b"), ENGINES)) == 0


def test_the_table_holds_the_plan_that_its_button_takes(tmp_path):
    plans = plans_of(read(to_mapping(job_on(nodes=4, model="qwen3-8b")), tmp_path), "en")
    assert plans["recommended"] in {row[plans["keys"].index("rank")] for row in plans["rows"]}
