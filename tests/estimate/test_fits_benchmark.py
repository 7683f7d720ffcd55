"""The verdicts "fits" and "does not fit" about runs that really ran."""

import pytest

from benchmarks.fits import FILES, published_rows, verdicts


@pytest.mark.parametrize("name", FILES)
def test_verdicts_about_published_runs_are_wrong_in_less_than_three_percent(name):
    counts = verdicts(published_rows(name))
    assert counts.rows > 100
    assert counts.refused < 0.03 * counts.rows
    assert counts.fits > 0.5 * counts.rows
    assert counts.full < 0.03 * counts.fits


def test_a_run_that_is_computed_too_large_or_that_filled_its_gpu_is_counted():
    row = next(row for row in published_rows("strangers.json") if row["hardware"] == "A10G-24GB")
    assert verdicts([row]).rows == 1
    assert verdicts([row | {"hardware": "L4-1GB"}]).refused == 1
    assert verdicts([row | {"measured_mem_gb": 26.0}]).full == verdicts([row]).fits
    assert verdicts([row | {"hardware": "not said"}]).rows == 0
