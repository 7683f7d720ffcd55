"""Batch arithmetic: steps as each engine counts them, and the learning rate for another global batch."""

import pytest

from backend.job.batch import scaled_rates, sequences, steps_per_epoch, total_steps, written
from backend.job.mapping import with_values
from backend.job.rules import check
from tests.estimate.cases import job


def of(engine, **values):
    """32 samples per step: 16 ranks, micro-batch 1, accumulation 2."""
    return job(cluster__nodes=2, cluster__gpus_per_node=8, engine=engine, training__gradient_accumulation_steps=2,
               **values)  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "each", "total"),
    [("llamafactory-ddp", 4, 10), ("llamafactory-megatron", 3, 8), ("swift-megatron", 3, 9)],
)
def test_the_last_incomplete_step_is_counted_as_the_engine_does(engine, each, total):
    the_job = of(engine, training__samples=100, training__num_train_epochs=2.5)
    # Of 3.125 steps, transformers takes 4 and mcore_adapter 3. ms-swift trains 3 whole epochs and drops the rest.
    assert (steps_per_epoch(the_job), total_steps(the_job)) == (each, total)


def test_a_number_of_steps_takes_the_place_of_epochs_and_fewer_samples_than_a_batch_are_one_step():
    assert total_steps(of("llamafactory-ddp", training__max_steps=7)) == 7
    assert steps_per_epoch(of("llamafactory-megatron", training__samples=5)) == 1
    assert (steps_per_epoch(of("llamafactory-ddp")), total_steps(of("llamafactory-ddp"))) == (None, None)


def test_packed_samples_of_known_length_are_counted_as_the_sequences_that_they_fill():
    """410 tokens per sample and sequences of 4,096: ten samples in one, except for the few that are cut."""
    packed = {"training__samples": 32_000, "training__sample_tokens": 410, "training__packing": True}
    assert (sequences(of("llamafactory-ddp", **packed)), total_steps(of("llamafactory-ddp", **packed))) == (3203, 303)
    assert sequences(of("llamafactory-ddp", **{**packed, "training__packing": False})) == 32_000
    assert sequences(of("llamafactory-ddp", **{**packed, "training__sample_tokens": None})) == 32_000


def test_rates_are_scaled_by_growth_or_its_root_to_three_figures():
    assert scaled_rates(2e-5, 2) == {"linear": 4e-5, "root": 2.83e-5}
    assert scaled_rates(2e-5, 0.25) == {"linear": 5e-6, "root": 1e-5}
    values = (2.83e-5, 5.66e-5, 1.6e-4, 9.999e-4, 0.5, 128.0, 1e10)
    assert [written(value) for value in values] == ["2.83e-5", "5.66e-5", "1.6e-4", "0.001", "0.5", "128", "1e10"]
    assert written(1.2345e-4, 6) == "1.2345e-4"


def test_a_rate_of_another_batch_is_offered_to_be_scaled_or_kept_and_each_choice_settles_it():
    the_job = of("llamafactory-ddp", training__learning_rate_batch=16)
    (result,) = [problem for problem in check(the_job) if problem.code == "learning_rate_batch"]
    assert result.severity == "note"
    assert (result.values["growth"], result.values["linear"], result.values["root"]) == ("2", "4e-5", "2.83e-5")
    rates = {name: with_values(the_job, edit).training.learning_rate for name, edit in result.choices.items()}
    assert rates == {"linear": 4e-5, "root": 2.83e-5, "keep": 2e-5}
    for edit in result.choices.values():
        assert "learning_rate_batch" not in {problem.code for problem in check(with_values(the_job, edit))}


@pytest.mark.parametrize("chosen_for", [None, 32])
def test_a_rate_whose_batch_is_not_known_or_the_same_is_let_be(chosen_for):
    the_job = of("llamafactory-ddp", training__learning_rate_batch=chosen_for)
    assert "learning_rate_batch" not in {problem.code for problem in check(the_job)}
