"""The benchmark of corrections by one run, on constructed clusters."""

import pytest

from backend.job.presets import calibration_figures
from benchmarks.calibration import by_distance, median_errors


def test_a_cluster_that_is_slower_throughout_is_corrected_wholly():
    slow = [(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)]
    uncorrected, corrected = median_errors([slow])
    assert (uncorrected, corrected) == (0.5, pytest.approx(0.0))


def test_a_plan_that_is_off_by_itself_misleads_the_others():
    (close, far) = by_distance([[(1.0, 1.0), (2.0, 2.0), (1.5, 1.0)]])
    assert (close.runs, far.runs) == (2, 1)
    assert (far.uncorrected, far.corrected) == (0.0, 0.5)


def test_the_error_that_is_shown_is_of_many_groups():
    figures = calibration_figures()
    assert 0 < figures.typical_error < 1
    assert figures.groups > 100
