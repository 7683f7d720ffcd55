"""Levels and 80 % intervals, what torch reserves, and FSDP with accumulation."""

import dataclasses
import math
from statistics import NormalDist

import pytest

from backend.estimate import estimate
from backend.estimate.interval import after_runs, memory_interval, shortest_share, time_interval
from backend.estimate.memory.engine_memory import memory_traits
from backend.estimate.memory.reserved import FIXED_LENGTHS, RESERVED_PER_ALLOCATED, VARIED_LENGTHS, segmented_bytes
from backend.estimate.memory.stage import RankParameters
from backend.estimate.memory.terms import StageMemory
from backend.estimate.time.calibrated import time_ratio, training_of
from backend.estimate.time.efficiency import level_on, machine_of
from backend.job.cluster import Calibration, Cluster
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.presets import Interval, gpus, intervals, resolve_model
from benchmarks.by_lengths import by_lengths, left_out_by_lengths
from benchmarks.habits import has_unknown_lengths
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
    level = level_of_gpu("h100-80g")
    assert slow.iteration_s == pytest.approx(level * fast.iteration_s)  # type: ignore[operator]
    assert slow.reserved_gib == fast.reserved_gib
    assert intervals().level["tuned"] == 1


def level_of_gpu(name: str) -> float:
    machine = machine_of(Cluster(gpu=name, nodes=1, gpus_per_node=8), gpus()[name])
    assert machine is not None
    return level_on(machine, intervals().level["as_run"])


def test_the_power_limit_leaves_less_to_lose_for_the_stacks_of_users():
    """Such runs draw less power than the limit, which slows only tuned stacks."""
    assert level_of_gpu("a100-80g") == intervals().level["as_run"]
    assert 1 < level_of_gpu("h100-80g") < level_of_gpu("l40s-48g") < level_of_gpu("a100-80g")
    assert level_of_gpu("b200-180g") == 1, "no stack is faster than a tuned one"


def test_a_level_counts_the_relief_of_each_gpu():
    """Two sources on a GPU with a relief of 0.8 and one without it, each 1.2 times as slow as it would be."""
    slow = math.log(1.2)
    scores = [Score(name, "megatron", slow + math.log(0.8), "g", relief=0.8) for name in "ab"]
    scores += [Score("c", "megatron", slow, "g")]
    assert level_of(scores) == pytest.approx(1.2)
    assert [score.log for score in levelled(scores, 1.5)] == pytest.approx(
        [slow + math.log(0.8 / 1.2)] * 2 + [slow - math.log(1.5)]
    )


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
        products=tuple,
    )
    assert segmented_bytes(stage, "fixed") == 175 + FIXED_LENGTHS * 20
    assert segmented_bytes(stage, "varied") == 175 + VARIED_LENGTHS * 20
    still = dataclasses.replace(stage, activations=0.0, logits=0.0, workspace=0.0)
    assert segmented_bytes(still, "varied") == still.peak


@pytest.mark.parametrize("config", [SYNC, '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'])
def test_fsdp_that_reduces_every_micro_batch_keeps_no_whole_gradients(config):
    whole, sharded = job(FSDP), job({**FSDP, "extra": {"accelerator_config": config}})
    shape, h100 = resolve_model(whole.model), gpus()["h100-80g"]
    assert memory_traits(whole, shape, h100).accumulates_whole
    assert not memory_traits(sharded, shape, h100).accumulates_whole
    assert estimate(sharded).stages[0].gradients_gib < estimate(whole).stages[0].gradients_gib


def test_each_source_counts_the_same_and_a_left_out_source_is_not_used():
    many = [Score("many", "megatron", 0.1, "g")] * 90
    few = [Score("few", "megatron", 0.5, "g")] * 10
    assert level_of([*many, *few]) == pytest.approx(2.718281828**0.3)
    held = interval([*many, *few], "megatron", 0.1)
    assert (held.low, held.high) == (pytest.approx(2.718281828**0.1), pytest.approx(2.718281828**0.5))
    assert tail_of([*many, *few], [], "megatron") <= 0.1
    assert levelled(many, 2.718281828**0.1)[0].log == pytest.approx(0, abs=1e-9)


def test_an_interval_is_mostly_of_the_rows_of_its_own_kind_and_made_without_the_source():
    full = [Score(source, "hugging_face", 0.0, "g") for source in "ab" for _ in range(10)]
    lora = [Score(source, "hugging_face_lora", 0.3, "g") for source in "cd" for _ in range(10)]
    mixed = interval([*full, *lora], "hugging_face", 0.1)
    assert (mixed.low, mixed.high) == (1.0, pytest.approx(2.718281828**0.3))
    assert interval([*full, *lora], "hugging_face", 0.25).high == 1.0
    held = left_out(full, lora, "hugging_face_lora", 0.25)
    assert [(row.source, row.stranger, row.inside) for row in held] == [
        (source, False, True) for source in "cd" for _ in range(10)
    ]
    alone = left_out(full, lora[:10], "hugging_face_lora", 0.25)
    assert not any(row.inside for row in alone), "nothing but full training is left without its source"


def test_lora_and_qlora_have_intervals_of_their_own_and_megatron_has_one_of_time():
    def factors(engine, method):
        tried = job(engine=engine, training__method=method)
        return memory_interval(tried), time_interval(tried)

    full, lora, qlora = (factors("llamafactory-ddp", method) for method in ("full", "lora", "qlora"))
    assert len({full[0], lora[0], qlora[0]}) == 3
    assert full[1] != lora[1] == qlora[1]
    megatron, megatron_lora = (factors("swift-megatron", method) for method in ("full", "lora"))
    assert megatron[0] != megatron_lora[0]
    assert megatron[1] == megatron_lora[1]


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
def test_a_calibrated_interval_is_not_wider_and_narrower_after_more_runs(engine, method):
    bare = job(engine=engine, training__method=method, training__sample_tokens=3000)

    def calibrated(**runs: float) -> Job:
        ratios = {"time_ratio": 1.2, "memory_ratio": 1.06, "training": training_of(bare)}
        known = Calibration(gpu="h100-80g", run="20261121-101500-job-0a1b", engine=engine, **ratios, **runs)
        return with_values(bare, {"cluster.calibration": known})

    runs = {"time_runs": 4, "memory_runs": 4}
    before, one, of_unknown_scatter = widths(bare), widths(calibrated()), widths(calibrated(**runs))
    four, scattered = (widths(calibrated(**runs, time_spread=spread, memory_spread=spread)) for spread in (0.01, 0.3))
    assert all(wide >= narrow for wide, narrow in zip(before, one, strict=True))
    assert all(wide > 1.2 * narrow for wide, narrow in zip(one, four, strict=True))
    assert all(wide > narrow for wide, narrow in zip(scattered, one, strict=True))
    assert of_unknown_scatter == one


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
    machine = machine_of(tried.cluster, gpus()["h100-80g"])
    assert machine is not None
    assert time_ratio(tried.cluster, machine) == 1.2


def test_a_calibration_of_an_older_version_corrects_without_narrowing():
    known = Calibration(run="r", engine="llamafactory-megatron", time_ratio=1.2, memory_ratio=1.2)
    tried = job(cluster__calibration=known)
    assert widths(tried) == pytest.approx(widths(job()))
    assert estimate(tried).reserved_gib == pytest.approx(1.2 / RESERVED_PER_ALLOCATED * estimate(job()).reserved_gib)


def test_after_many_runs_the_error_is_that_of_one_plan():
    """The mean of n runs leaves V (1 + 1/n) of the variance V of a plan; one run leaves 2 V. V is that of the own runs
    after many, and in the beginning nearly the published one."""
    one = Interval(low=0.5, high=2.0)
    assert after_runs(one, 1, None) == after_runs(one, 7, None) == one
    spread = math.log(2.0) / NormalDist().inv_cdf(0.9) / 2**0.5
    assert after_runs(one, 10**6, spread).high == pytest.approx(2.0**0.5**0.5, rel=1e-5)
    assert after_runs(one, 10**6, 2 * spread).high == pytest.approx(2.0**2**0.5, rel=1e-4)
    assert after_runs(one, 2, spread).high == pytest.approx(2.0**0.75**0.5)


def test_the_interval_of_memory_is_wider_the_less_is_known_of_the_lengths():
    known = {"training.samples": 100_000, "training.sample_tokens": 2000}
    short = {"training.samples": 1000, "training.sample_tokens": 100}
    for engine, method in (("llamafactory-ddp", "lora"), ("llamafactory-zero3", "full"), ("swift-megatron", "full")):
        packed, measured, unknown, unreached = (
            memory_interval(job(edits, engine=engine, training__method=method))
            for edits in ({"training.packing": True}, known, {}, short)
        )
        assert unknown.low <= measured.low <= packed.low
        assert packed.high <= measured.high <= unknown.high
        assert (unknown.low, unknown.high) != (packed.low, packed.high)
        # Where samples follow each other without padding, memory is computed for their lengths.
        assert unreached == (measured if engine == "swift-megatron" else unknown)


def test_steps_and_hours_go_down_to_short_samples_until_the_lengths_are_known():
    whole = {"training.samples": 10_000, "training.packing": True}
    unknown, packed, known = (
        estimate(job(edits))
        for edits in ({"training.samples": 10_000}, whole, {**whole, "training.sample_tokens": 500})
    )
    low = time_interval(job()).low
    share = shortest_share(job())
    assert share < 0.1
    assert unknown.iteration_s_low == pytest.approx(low * share * unknown.iteration_s)  # type: ignore[operator]
    assert unknown.hours_low == pytest.approx(low * share * unknown.hours)  # type: ignore[operator]
    assert unknown.tokens_per_s_per_gpu_high == pytest.approx(unknown.tokens_per_s_per_gpu / low)  # type: ignore[operator]
    assert packed.iteration_s_low == pytest.approx(low * packed.iteration_s)  # type: ignore[operator]
    assert packed.hours_low == pytest.approx(low * share * packed.hours)  # type: ignore[operator]
    assert known.hours_low == pytest.approx(low * known.hours)  # type: ignore[operator]


def test_an_estimate_names_what_makes_its_intervals_wider_and_a_run_takes_it_away():
    bare = job(engine="llamafactory-ddp")
    assert (estimate(bare).memory_unknown, estimate(bare).time_unknown) == (("lengths",), ("lengths", "stack"))
    known = Calibration(run="r", engine=bare.engine, time_ratio=1.2, memory_ratio=1.1, training=training_of(bare))
    after = estimate(with_values(bare, {"cluster.calibration": known, "training.sample_tokens": 3000}))
    assert (after.memory_unknown, after.time_unknown) == ((), ())
    assert estimate(with_values(bare, {"cluster.stack": "tuned"})).time_unknown == ("lengths",)


def test_each_row_is_held_by_the_interval_for_what_its_source_tells_of_lengths():
    def scores(source: str, log: float, *, unknown: bool) -> list[Score]:
        return [
            Score(source, "hugging_face_lora", sign * log, "g", unknown_lengths=unknown)
            for sign in (-1, -0.5, 0, 0.5, 1)
        ]

    exact = [score for source in "abc" for score in scores(source, 0.02, unknown=False)]
    guessed = [score for source in "de" for score in scores(source, 0.4, unknown=True)]
    tails = dict.fromkeys(("fixed", "measured", "unknown"), 0.1)
    found = by_lengths([*exact, *guessed], "hugging_face_lora", tails)
    assert found["unknown"].low <= found["measured"].low <= found["fixed"].low < 1
    assert found["fixed"].high == pytest.approx(math.exp(0.02))
    assert found["unknown"].high == pytest.approx(math.exp(0.4))
    held = left_out_by_lengths(exact, guessed, "hugging_face_lora", tails)
    assert [len(held[lengths]) for lengths in ("fixed", "unknown")] == [15, 10]
    assert all(row.inside for row in held["fixed"])


@pytest.mark.parametrize(
    ("row", "is_unknown"),
    [
        ({"source": "some blog", "framework": "transformers"}, True),
        ({"source": "some blog", "framework": "transformers", "method": "LoRA, packing"}, False),
        ({"source": "ms-swift example script header", "sample_tokens": 300}, False),
        ({"source": "SimuMax"}, False),
        ({"source": "LitGPT config hub", "blind": {"guessed": ["longest sample taken as max_seq_length 512"]}}, True),
    ],
)
def test_a_row_of_fine_tuning_tells_its_lengths_if_it_packs_or_publishes_them(row, is_unknown):
    assert has_unknown_lengths(row) == is_unknown


def test_a_row_is_corrected_by_the_other_rows_of_its_group_and_counts_once():
    scores = [Score("a", "megatron", log, "g") for log in (0.0, 0.1, 0.4)] + [Score("b", "megatron", 9.0, "alone")]
    single, double = corrected(scores), corrected(scores, 2)
    assert sum(error.weight for error in single) == pytest.approx(3.0)
    assert sorted(round(error.log, 3) for error in double) == [-0.25, -0.1, 0.35]
    ends = interval(single, "megatron", 0.1)
    assert ends.low == pytest.approx(1 / ends.high)


def test_a_corrected_interval_is_made_without_the_source_and_wide_enough_for_most_of_its_rows():
    calm = [Score(source, "megatron", log, "g") for source in "abcd" for log in (0.0, 0.01, 0.02)]
    wild = [Score("wild", "megatron", log, "g") for log in (0.0, 0.5, 1.0)]
    held = left_out_corrected([*calm, *wild], "megatron", 0.1)
    assert {row.source for row in held if row.inside} == set("abcd")
    assert share_of_rows(held) == pytest.approx(0.8)
    assert tail_of_corrected(calm, "megatron") == 0.1
    assert tail_of_corrected([*calm, *wild, *(row._replace(source="wilder") for row in wild)], "megatron") < 0.1
