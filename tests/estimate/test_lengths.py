"""Sequences with samples shorter than cutoff_len: padding, and the wait for the copy with the longest samples."""

from dataclasses import replace

import numpy as np
import pytest

from backend.estimate import estimate, much_padding
from backend.estimate.memory.padded_packs import largest_pack, mean_pack
from backend.estimate.memory.worst_microbatch import worst_microbatch_length
from backend.estimate.model.lengths import attended_length, computed_length, slowest_share
from backend.estimate.plan import plan_of
from tests.estimate.cases import TP2_PP2_VPP2, TP4, job

MOE = {"model.preset": "mixtral-8x7b"}
TEXT = {"model.preset": "llama-3.1-8b"}
UNFUSED = {"attention_backend": "unfused"}


def drawn(made, *, steps=200):
    """Return mean lengths of randomly drawn steps: of a sequence after padding, and of the slowest copy's sequences.

    This is an independent implementation of what the engines do: pad to the longest of a micro-batch or of a step, or
    not.
    """
    plan, training = plan_of(made, None), made.training
    shape = (steps, plan.data, plan.micro_batches, plan.micro_batch)
    lengths = np.minimum(np.random.default_rng(1).exponential(training.sample_tokens, shape), training.cutoff_len)
    is_padded = made.engine != "swift-megatron" or made.extra
    padded = lengths.max(3) if is_padded else lengths.mean(3)
    if made.engine == "llamafactory-megatron" and plan.pipeline > 1:
        padded = padded.max(2, keepdims=True)
    if made.traits.zero_stage == 3:
        return padded.mean(), padded.max(1).mean()
    return padded.mean(), padded.mean(2).max(1).mean()


@pytest.mark.parametrize("mean", [300, 2000])
@pytest.mark.parametrize(
    ("engine", "edits"),
    [("llamafactory-ddp", {}), ("llamafactory-zero3", {}), ("llamafactory-megatron", TP4),
     ("llamafactory-megatron", TP2_PP2_VPP2), ("swift-megatron", TP4),
     ("swift-megatron", {**TP4, "extra": UNFUSED}), ("swift-megatron", {**TP4, "extra": {"padding_free": False}})],
)  # fmt: skip
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_the_slowest_copy_is_that_of_steps_drawn_at_random(engine, edits, mean, micro_batch):
    the_job = job(TEXT, edits, engine=engine, training__sample_tokens=mean, training__micro_batch_size=micro_batch)
    padded, slowest = drawn(the_job)
    length = computed_length(the_job)
    # mcore_adapter fills up to a multiple of 64.
    filled = 32 if engine == "llamafactory-megatron" else 0
    if the_job.parallel.pipeline == 1:
        assert length == pytest.approx(min(padded + filled, 4096), rel=0.02)
    assert length * slowest_share(the_job, plan_of(the_job, None)) == pytest.approx(slowest, rel=0.1)


def test_experts_of_llamafactory_are_fed_full_sequences_and_those_of_swift_are_not():
    short = {**MOE, "training.sample_tokens": 500}
    assert computed_length(job(short, parallel__expert=8)) == 4096
    assert computed_length(job(short, parallel__expert=8, engine="swift-megatron")) == pytest.approx(500, rel=0.01)
    assert computed_length(job(short)) < 600


def test_packing_ends_a_run_sooner_and_every_token_of_it_counts():
    """A step has eight times as many samples, and no padding."""
    short = {**TEXT, "training.sample_tokens": 500, "training.samples": 100_000}
    padded, packed, unknown = (
        estimate(job(short, edits)) for edits in ({}, {"training.packing": True}, {"training.sample_tokens": None})
    )
    assert packed.iteration_s == unknown.iteration_s > padded.iteration_s
    assert packed.hours < 0.6 * padded.hours < 0.6 * unknown.hours
    assert padded.tokens_per_s_per_gpu < packed.tokens_per_s_per_gpu == unknown.tokens_per_s_per_gpu
    # Memory is that of the longest sample.
    assert padded.peak_gib == packed.peak_gib == unknown.peak_gib


def test_much_padding_is_reported_with_what_packing_makes_of_the_hours_where_it_may_be():
    def told(*edits):
        the_job = job(
            TEXT,
            TP4,
            {"training.sample_tokens": 500, "training.samples": 100_000, "training.micro_batch_size": 4},
            *edits,
        )
        return much_padding(the_job, estimate(the_job))

    (note,) = told()
    assert (note.code, note.severity, note.values["mean"]) == ("packing_pays", "note", 500)
    assert float(note.values["packed"]) < 0.6 * float(note.values["hours"])
    assert note.edit == {"training.packing": True}
    for edits in ({"training.stage": "dpo"}, {"parallel.context": 2}, {"training.samples": None}):
        assert [(note.code, note.edit) for note in told(edits)] == [("mostly_padding", {})]
    assert [note.edit for note in told({"engine": "swift-megatron", "extra": UNFUSED})] == [{}]
    assert told({"engine": "swift-megatron"}) == []
    padded_packs = {"engine": "swift-megatron", "extra": UNFUSED, "training.packing": True}
    assert told(padded_packs) == [], "a rule says it: unfused_packs_nothing"
    assert told({"training.packing": True}) == told({"training.sample_tokens": None}) == []


def test_attention_of_packed_samples_goes_over_the_sample_that_a_token_is_in():
    """In random draws, a token is in a long sample more often than in a short one."""
    the_job = job(TEXT, engine="swift-megatron", training__sample_tokens=2000, training__packing=True)
    lengths = np.minimum(np.random.default_rng(1).exponential(2000, 1_000_000), 4096)
    assert attended_length(the_job) == pytest.approx((lengths**2).sum() / lengths.sum(), rel=0.01)


def test_only_attention_that_crosses_samples_costs_as_much_as_the_whole_sequence():
    short = {**TEXT, "training.sample_tokens": 1000, "training.packing": True, "training.cutoff_len": 32768}
    crossing, apart = (
        estimate(job(short, TP4, extra=extra, engine="llamafactory-zero3", parallel__tensor=1)).iteration_s
        for extra in ({}, {"neat_packing": True, "flash_attn": "fa2"})
    )
    assert apart < 0.8 * crossing
    masked = job(short, engine="llamafactory-zero3", extra={"neat_packing": True})
    assert attended_length(masked) is None, "SDPA with a mask computes the whole square"
    assert attended_length(job(short)) is None
    assert attended_length(job(TEXT, engine="swift-megatron")) is None
    padded = {**TEXT, "training.sample_tokens": 1000, "engine": "swift-megatron"}
    assert attended_length(job(padded)) is not None
    for extra in (UNFUSED, {"padding_free": False}):
        assert attended_length(job(padded, extra=extra)) is None


@pytest.mark.parametrize(
    ("mean", "cutoff", "most"), [(2000, 4096, 2.9), (1000, 4096, 2.7), (200, 8192, 1.5), (164, 8192, 1.9)]
)
def test_padded_packs_count_as_batches_of_their_longest_sample(mean, cutoff, most):
    """Unfused attention packs nothing. 200 draws of 1,000 lengths each have their own largest pack."""
    packed = {**TEXT, "engine": "swift-megatron", "extra": UNFUSED, "training.packing": True}
    the_job = job(packed, training__sample_tokens=mean, training__cutoff_len=cutoff)
    largest = largest_pack(the_job)
    assert largest.tokens == pytest.approx(most * cutoff, rel=0.1)
    usual = packs(np.minimum(-mean * np.log((np.arange(1000) + 0.5) / 1000), cutoff), cutoff)
    assert largest.tokens == pytest.approx(max(len(pack) * max(pack) for pack in usual))
    assert largest.tokens * largest.attended == pytest.approx(max(len(pack) * max(pack) ** 2 for pack in usual))
    lengths = np.minimum(np.random.default_rng(3).exponential(mean, (20, 1000)), cutoff)
    drawn = np.mean([sum(len(pack) * max(pack) for pack in packs(row, cutoff)) for row in lengths])
    whole = np.mean([len(packs(row, cutoff)) for row in lengths])
    assert mean_pack(the_job).tokens == pytest.approx(drawn / whole, rel=0.1)
    assert computed_length(the_job) == mean_pack(the_job).tokens
    assert plan_of(the_job, None).tokens == largest_pack(the_job).tokens
    full, unknown = (estimate(replace_mean(the_job, length)).stages[0].activations_gib for length in (mean, None))
    assert full > unknown if most > 2 else full < 1.6 * unknown
    fused = job(packed, training__sample_tokens=mean, training__cutoff_len=cutoff, extra={})
    assert plan_of(fused, None).tokens == cutoff


def packs(lengths, cutoff):
    """Return the packs of the engine's own packing, in the simplest form."""
    made = []
    for length in sorted(map(float, lengths), reverse=True):
        fitting = [pack for pack in made if sum(pack) + length <= cutoff]
        max(fitting, key=sum).append(length) if fitting else made.append([length])
    return made


def replace_mean(the_job, mean):
    return replace(the_job, training=replace(the_job.training, sample_tokens=mean))


@pytest.mark.parametrize("mean", [150, 900])
@pytest.mark.parametrize("micro_batch", [1, 2, 8, 32])
def test_without_padding_a_micro_batch_is_as_large_as_the_largest_of_runs_drawn_at_random(mean, micro_batch):
    samples = 9600
    the_job = job(
        TEXT,
        engine="swift-megatron",
        training__sample_tokens=mean,
        training__micro_batch_size=micro_batch,
        training__samples=samples,
        training__num_train_epochs=1,
    )
    lengths = np.random.default_rng(1).exponential(mean, (60, samples // micro_batch, micro_batch))
    cut = np.minimum(lengths, the_job.training.cutoff_len)
    # One sample of cutoff_len is always taken to be there.
    with_longest = cut.mean() + (the_job.training.cutoff_len - cut.mean()) / micro_batch
    worst_length = max(cut.mean(2).max(1).mean(), with_longest)
    assert worst_microbatch_length(the_job) == pytest.approx(worst_length, rel=0.1)


def test_memory_is_that_of_full_sequences_where_they_are_padded_packed_or_not_known():
    known = {**TEXT, **TP4, "training.sample_tokens": 500, "training.samples": 100_000, "training.micro_batch_size": 8}
    swift, samples = {"engine": "swift-megatron"}, {"training.samples": None}
    short, long = (estimate(job(known, swift, edits)).peak_gib for edits in ({}, {"training.sample_tokens": None}))
    assert short < long
    full = {"training.micro_batch_size": 1}
    assert estimate(job(known, swift, full)).peak_gib == estimate(job(known, swift, full, samples)).peak_gib
    for edits in (samples, {"training.packing": True}, {"training.sample_tokens": 4096}):
        assert estimate(job(known, swift, edits)).peak_gib == long
    for padded in ({}, {**swift, "extra": UNFUSED}, {**swift, "extra": {"padding_free": False}}):
        of_mean, unknown = (
            estimate(job(known, padded, edits)).peak_gib for edits in ({}, {"training.sample_tokens": None})
        )
        assert of_mean == unknown
