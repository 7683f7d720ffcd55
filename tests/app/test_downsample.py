"""A thinned curve never hides a spike."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.monitor.downsample import downsample

curves = st.integers(1, 3000).flatmap(
    lambda n: st.tuples(
        st.just(n), st.integers(1, 50), st.integers(0, 10_000), st.integers(0, 2**32).map(Random), st.integers(8, 400)
    )
)


def _curve(n, stride, start, random):
    steps = [start + stride * i for i in range(n)]
    return steps, [random.gauss(0, 1) for _ in range(n)]


@settings(max_examples=40)
@given(curves)
def test_never_more_than_the_limit_and_both_ends_and_extremes_stay(case):
    n, stride, start, random, limit = case
    steps, values = _curve(n, stride, start, random)
    thinned = downsample(steps, values, limit)
    assert len(thinned) <= limit
    assert list(thinned) == sorted(set(thinned.tolist()))
    assert thinned[0] == 0
    assert thinned[-1] == n - 1
    assert min(values) == min(values[i] for i in thinned)
    assert max(values) == max(values[i] for i in thinned)


def test_a_single_spike_among_a_million_points_stays():
    values = np.sin(np.arange(1_000_000) / 500.0)
    values[777_777] = 40.0
    thinned = downsample(np.arange(1_000_000), values, 1500)
    assert 777_777 in thinned
    assert len(thinned) <= 1500


def test_a_short_curve_is_left_as_it_is():
    assert downsample([5, 6, 9], [1.0, 2.0, 3.0]).tolist() == [0, 1, 2]
    assert downsample([], []).tolist() == []


def test_points_shown_before_stay_while_the_curve_grows_within_its_buckets():
    steps = list(range(1800))
    values = [float((step * 37) % 101) for step in steps]
    before = {steps[i] for i in downsample(steps[:1700], values[:1700], 1000)} - {1699}
    after = {steps[i] for i in downsample(steps, values, 1000)}
    assert before <= after | set(range(1696, 1704))
