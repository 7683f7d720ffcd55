"""The memory of Megatron plans agrees with published runs."""

import pytest

from benchmarks.published import b200_runs

RUNS = list(b200_runs())
DENSE = [run for run in RUNS if not run.latent_attention]


@pytest.mark.parametrize("run", DENSE, ids=lambda run: f"{run.model} {run.layout}")
def test_each_dense_b200_layout_is_within_three_quarters_of_a_percent_on_every_stage(run):
    assert max(abs(error) for error in run.stage_errors) <= 0.0075


def test_the_dense_b200_layouts_are_within_a_quarter_percent_on_average():
    assert len(DENSE) == 15
    assert sum(abs(run.error) for run in DENSE) / len(DENSE) <= 0.0025


def test_the_deepseek_layouts_are_within_one_percent_on_the_worst_stage():
    assert all(abs(run.error) <= 0.01 for run in RUNS if run.latent_attention)
