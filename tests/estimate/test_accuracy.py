"""The memory of Megatron plans agrees with published runs."""

import pytest

from benchmarks.published import b200_runs

RUNS = list(b200_runs())
DENSE = [run for run in RUNS if not run.latent_attention]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.model} {run.layout}")
def test_each_b200_layout_is_within_half_a_percent_on_every_stage(run):
    assert max(abs(error) for error in run.stage_errors) <= 0.005


def test_the_dense_b200_layouts_are_within_a_quarter_percent_on_average():
    assert len(DENSE) == 15
    assert sum(abs(run.error) for run in DENSE) / len(DENSE) <= 0.0025


def test_the_deepseek_layouts_are_as_close_on_average_as_the_dense_ones():
    errors = [abs(error) for run in RUNS if run.latent_attention for error in run.stage_errors]
    assert len(errors) == 6
    assert sum(errors) / len(errors) <= 0.0025
