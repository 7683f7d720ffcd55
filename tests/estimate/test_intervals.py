"""Levels and 80 % intervals, what torch reserves, and FSDP with accumulation."""

import dataclasses

import pytest

from backend.estimate import estimate
from backend.estimate.interval import after_runs, memory_interval, time_interval
from backend.estimate.memory.engine_memory import memory_traits
from backend.estimate.memory.reserved import FIXED_LENGTHS, RESERVED_PER_ALLOCATED, VARIED_LENGTHS, segmented_bytes
from backend.estimate.memory.stage import RankParameters
from backend.estimate.memory.terms import Moment, StageMemory
from backend.estimate.time.calibrated import time_ratio, training_of
from backend.job.cluster import Calibration
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.presets import intervals
from benchmarks.left_out import (
    Score,
    corrected,
    interval,
    left_out,
    left_out_corrected,
    level_of,
    levelled,
    share_of_rows,
    tail_of,
    tail_of_corrected,
)
from tests.estimate.cases import job

FSDP = {"engine": "llamafactory-fsdp", "training.gradient_accumulation_steps": 4}
SYNC = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}


def test_a_tuned_stack_is_faster_by_the_level_and_the_order_of_plans_stays():
    slow, fast = estimate(job()), estimate(job(cluster__stack="tuned"))
    assert slow.iteration_s == pytest.approx(intervals().level["as_run"] * fast.iteration_s)  # type: ignore[operator]
    assert slow.reserved_gib == fast.reserved_gib
    assert intervals().level["tuned"] == 1


def test_every_interval_holds_its_figure_and_lies_between_its_bounds():
    result = estimate(job({"training.samples": 10_000}))
    for name in ("iteration_s", "hours", "tokens_per_s_per_gpu"):
        low, figure, high = (getattr(result, f"{name}{end}") for end in ("_low", "", "_high"))
        assert low < figure < high, name
    need = result.reserved_gib + result.outside_gib
    assert result.need_gib_low < need < result.need_gib_high  # type: ignore[operator]


@pytest.mark.parametrize(("share", "fit"), [(0.5, "fits"), (0.98, "close"), (1.05, "close"), (2.0, "too_large")])
def test_a_plan_is_close_where_its_interval_holds_the_memory(share, fit):
    need = (result := estimate(job())).reserved_gib + result.outside_gib
    gpu = {"name": "own", "memory_gib": need / share, "bf16_tflops": 900.0, "hbm_gb_per_s": 3000.0}
    assert estimate(job(cluster__gpu=gpu)).fit == fit


def test_only_what_comes_and_goes_leaves_gaps():
    stage = StageMemory(
        stage=0,
        layers=1,
        parameters=RankParameters(dense=1, expert=0, trained_dense=1, trained_expert=0),
        weights=100.0,
        gradients=50.0,
        optimizer=25.0,
        activations=10.0,
        logits=6.0,
        workspace=4.0,
        moment=Moment(),
        terms=(),
    )
    assert segmented_bytes(stage, "fixed") == 175 + FIXED_LENGTHS * 20
    assert segmented_bytes(stage, "varied") == 175 + VARIED_LENGTHS * 20
    still = dataclasses.replace(stage, activations=0.0, logits=0.0, workspace=0.0)
    assert segmented_bytes(still, "varied") == still.peak


@pytest.mark.parametrize("config", [SYNC, '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'])
def test_fsdp_that_reduces_every_micro_batch_keeps_no_whole_gradients(config):
    whole, sharded = job(FSDP), job({**FSDP, "extra": {"accelerator_config": config}})
    assert memory_traits(whole).accumulates_whole
    assert not memory_traits(sharded).accumulates_whole
    assert estimate(sharded).stages[0].gradients_gib < estimate(whole).stages[0].gradients_gib


def test_each_source_counts_the_same_and_a_left_out_source_is_not_used():
    many = [Score("many", "megatron", 0.1, "g")] * 90
    few = [Score("few", "megatron", 0.5, "g")] * 10
    assert level_of([*many, *few]) == pytest.approx(2.718281828**0.3)
    low, high = interval([*many, *few], "megatron", 0.1)
    assert (low, high) == (pytest.approx(2.718281828**0.1), pytest.approx(2.718281828**0.5))
    assert tail_of([*many, *few], [], "megatron") <= 0.1
    assert levelled(many, 2.718281828**0.1)[0].log == pytest.approx(0, abs=1e-9)


def test_an_interval_is_mostly_of_the_rows_of_its_own_kind_and_made_without_the_source():
    full = [Score(source, "hugging_face", 0.0, "g") for source in "ab" for _ in range(10)]
    lora = [Score(source, "hugging_face_lora", 0.3, "g") for source in "cd" for _ in range(10)]
    low, high = interval([*full, *lora], "hugging_face", 0.1)
    assert (low, high) == (1.0, pytest.approx(2.718281828**0.3))
    assert interval([*full, *lora], "hugging_face", 0.25).high == 1.0
    held = left_out(full, lora, "hugging_face_lora", 0.25)
    assert [(row.source, row.stranger, row.inside) for row in held] == [
        (source, False, True) for source in "cd" for _ in range(10)
    ]
    alone = left_out(full, lora[:10], "hugging_face_lora", 0.25)
    assert not any(row.inside for row in alone), "nothing but full training is left without its source"


def test_lora_and_qlora_have_intervals_of_their_own_outside_megatron():
    def factors(engine, method):
        tried = job(engine=engine, training__method=method)
        return memory_interval(tried), time_interval(tried)

    full, lora, qlora = (factors("llamafactory-ddp", method) for method in ("full", "lora", "qlora"))
    assert len({full[0], lora[0], qlora[0]}) == 3
    assert full[1] != lora[1] == qlora[1]
    assert factors("swift-megatron", "full") == factors("swift-megatron", "lora")


def widths(tried: Job) -> tuple[float, float]:
    """Return the widths of the intervals of time and memory, as fractions of the figures."""
    result = estimate(tried)
    assert result.iteration_s is not None
    assert result.iteration_s_low is not None
    assert result.iteration_s_high is not None
    return (
        (result.iteration_s_high - result.iteration_s_low) / result.iteration_s,
        (result.need_gib_high - result.need_gib_low) / (result.reserved_gib + result.outside_gib),
    )


@pytest.mark.parametrize(
    ("engine", "method"),
    [("llamafactory-megatron", "full"), *(("llamafactory-ddp", method) for method in ("full", "lora", "qlora"))],
)
def test_a_calibrated_interval_is_narrower_and_again_after_more_runs(engine, method):
    bare = job(engine=engine, training__method=method)

    def calibrated(**runs: int) -> Job:
        ratios = {"time_ratio": 1.2, "memory_ratio": 1.06, "training": training_of(bare)}
        known = Calibration(gpu="h100-80g", run="20261121-101500-job-0a1b", engine=engine, **ratios, **runs)
        return with_values(bare, {"cluster.calibration": known})

    before, one, four = widths(bare), widths(calibrated()), widths(calibrated(time_runs=4, memory_runs=4))
    assert all(wide > narrow for wide, narrow in zip(before, one, strict=True))
    assert all(wide > 1.2 * narrow for wide, narrow in zip(one, four, strict=True))


@pytest.mark.parametrize(
    "other", [{"training.cutoff_len": 8192}, {"training.method": "lora"}, {"model.preset": "qwen3-8b"}]
)
def test_a_run_of_another_training_narrows_nothing_and_corrects_no_memory(other):
    bare = job(engine="llamafactory-ddp")
    known = Calibration(
        run="r", engine="llamafactory-ddp", time_ratio=1.2, memory_ratio=2.0, training=training_of(bare)
    )
    tried, uncalibrated = with_values(bare, {**other, "cluster.calibration": known}), with_values(bare, other)
    assert widths(tried) == pytest.approx(widths(uncalibrated))
    assert estimate(tried).reserved_gib == estimate(uncalibrated).reserved_gib
    assert time_ratio(tried.cluster) == 1.2


def test_a_calibration_of_an_older_version_corrects_without_narrowing():
    known = Calibration(run="r", engine="llamafactory-megatron", time_ratio=1.2, memory_ratio=1.2)
    tried = job(cluster__calibration=known)
    assert widths(tried) == pytest.approx(widths(job()))
    assert estimate(tried).reserved_gib == pytest.approx(1.2 / RESERVED_PER_ALLOCATED * estimate(job()).reserved_gib)


def test_after_many_runs_the_error_is_that_of_one_plan():
    """The mean of n runs leaves V (1 + 1/n) of the variance V of a plan; one run leaves 2 V."""
    assert after_runs(2.0, 1) == 2.0
    assert after_runs(2.0, 10**6) == pytest.approx(2.0**0.5**0.5, rel=1e-5)


def test_a_row_is_corrected_by_the_other_rows_of_its_group_and_counts_once():
    scores = [Score("a", "megatron", log, "g") for log in (0.0, 0.1, 0.4)] + [Score("b", "megatron", 9.0, "alone")]
    single, double = corrected(scores), corrected(scores, 2)
    assert sum(error.weight for error in single) == pytest.approx(3.0)
    assert sorted(round(error.log, 3) for error in double) == [-0.25, -0.1, 0.35]
    low, high = interval(single, "megatron", 0.1)
    assert low == pytest.approx(1 / high)


def test_a_corrected_interval_is_made_without_the_source_and_wide_enough_for_most_of_its_rows():
    calm = [Score(source, "megatron", log, "g") for source in "abcd" for log in (0.0, 0.01, 0.02)]
    wild = [Score("wild", "megatron", log, "g") for log in (0.0, 0.5, 1.0)]
    held = left_out_corrected([*calm, *wild], "megatron", 0.1)
    assert {row.source for row in held if row.inside} == set("abcd")
    assert share_of_rows(held) == pytest.approx(0.8)
    assert tail_of_corrected(calm, "megatron") == 0.1
    assert tail_of_corrected([*calm, *wild, *(row._replace(source="wilder") for row in wild)], "megatron") < 0.1
