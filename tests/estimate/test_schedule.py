"""The schedules' closed forms and the time of an iteration agree with the event simulation."""

import itertools

import numpy as np
import pytest

from backend.estimate.time.schedule import (
    _distinct,
    bubble_fraction,
    chunk_layers,
    equal_pieces,
    in_flight,
    iteration_time,
    textbook_bubble,
)
from backend.estimate.time.simulate import duration, simulate

CUTS = {
    (pipeline, virtual): [count for count in (1, 2, 4, 8, 16, 24) if virtual == 1 or count % pipeline == 0]
    for pipeline, virtual in itertools.product((1, 2, 3, 4, 8), (1, 2, 4))
    if virtual == 1 or pipeline > 1
}
"""(stages, chunks a stage) -> numbers of micro-batches."""
LONG = {
    (2, 1): [96],
    (2, 2): [96],
    (3, 2): [96],
    (4, 1): [128],
    (4, 2): [96],
    (4, 4): [128],
    (8, 1): [96],
    (8, 2): [128],
}
"""One more for some of them."""


def stages(pipeline, virtual, *, tower=0.0, tower_backward=2.0, head=0.0):
    """Return times of equal layers, a vision tower in the first chunk of the first stage, and an output layer in the
    last chunk."""
    forward = [[1 / virtual] * virtual for _ in range(pipeline)]
    backward = [[2 / virtual] * virtual for _ in range(pipeline)]
    forward[0][0] += tower
    backward[0][0] += tower_backward * tower
    forward[-1][-1] += head
    backward[-1][-1] += 2 * head
    return forward, backward


def most_in_flight(events, pipeline, virtual):
    """Return, per stage, the micro-batches in each chunk at the moment with the most of them in flight."""
    most = [(0,) * virtual] * pipeline
    holding = [[0] * virtual for _ in range(pipeline)]
    for event in sorted(events, key=lambda one: one.end):
        holding[event.stage][event.chunk] += 1 if event.is_forward else -1
        if sum(holding[event.stage]) > sum(most[event.stage]):
            most[event.stage] = tuple(holding[event.stage])
    return most


@pytest.mark.parametrize(("pipeline", "virtual"), CUTS)
def test_equal_stages_run_as_the_textbook_says(pipeline, virtual):
    forward, backward = [1.0] * pipeline, [2.0] * pipeline
    for micro_batches in CUTS[pipeline, virtual]:
        expected = textbook_bubble(pipeline, virtual, micro_batches)
        assert bubble_fraction(forward, backward, virtual, micro_batches) == pytest.approx(expected)
        events = simulate(forward, backward, virtual, micro_batches)
        assert 1 - 3 * micro_batches / max(event.end for event in events) == pytest.approx(expected)
        expected = [in_flight(pipeline, virtual, micro_batches, stage) for stage in range(pipeline)]
        assert most_in_flight(events, pipeline, virtual) == expected


UNEVEN = (
    {"tower": 0.05},
    {"tower": 0.4},
    {"tower": 0.4, "tower_backward": 0},
    {"head": 0.2},
    {"tower": 0.6, "head": 0.1},
)


@pytest.mark.parametrize(("pipeline", "virtual"), CUTS)
def test_the_bubble_of_unequal_stages_is_the_simulations_within_a_tenth_of_a_point(pipeline, virtual):
    for micro_batches, uneven in itertools.product(CUTS[pipeline, virtual] + LONG.get((pipeline, virtual), []), UNEVEN):
        forward, backward = stages(pipeline, virtual, **uneven)
        busy = sum(map(sum, forward)) + sum(map(sum, backward))
        expected = 1 - micro_batches * busy / pipeline / duration(forward, backward, virtual, micro_batches)
        assert bubble_fraction(forward, backward, virtual, micro_batches) == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize(("pipeline", "virtual"), CUTS)
def test_many_plans_together_take_what_one_takes_within_two_percent(pipeline, virtual):
    alone = [stages(pipeline, virtual, **uneven) for uneven in UNEVEN]
    together = [
        [[np.array(times) for times in zip(*chunks, strict=True)] for chunks in zip(*ways, strict=True)]
        for ways in zip(*alone, strict=True)
    ]
    for micro_batches in CUTS[pipeline, virtual] + LONG.get((pipeline, virtual), []):
        times = iteration_time(*together, virtual, np.full(len(UNEVEN), micro_batches))
        assert list(times) == pytest.approx([iteration_time(*item, virtual, micro_batches) for item in alone], rel=0.02)


@pytest.mark.parametrize(("pipeline", "virtual"), [(2, 1), (2, 3), (4, 1), (4, 2), (8, 1), (8, 2)])
@pytest.mark.parametrize("uneven", ["output layer", "short first chunk", "tower", "all differ"])
def test_passes_that_are_not_followed_take_what_following_them_gives(pipeline, virtual, uneven):
    random = np.random.default_rng(pipeline * virtual)
    for _ in range(4):
        tower, back, head = random.random(3) * (0.3, 2, 0.5)
        if uneven == "output layer":
            tower = 0.0
        elif uneven == "short first chunk":
            tower, back = -tower / virtual, 1.0
        forward_times, behind = stages(pipeline, virtual, tower=tower, tower_backward=back, head=head)
        if uneven == "all differ":
            forward_times, behind = (
                [[random.random()] * virtual for _ in forward_times],
                [[1.5 * random.random()] * virtual for _ in behind],
            )
        for micro_batches in (pipeline, 2 * pipeline, 3 * pipeline, 8 * pipeline):
            followed = duration(forward_times, behind, virtual, micro_batches)
            assert iteration_time(forward_times, behind, virtual, micro_batches) == pytest.approx(followed, rel=1e-9)


def test_a_pipeline_whose_last_stage_sets_the_pace_is_not_followed(monkeypatch):
    forward_times, behind = stages(4, 2, head=0.2)
    expected = duration(forward_times, behind, 2, 8)
    monkeypatch.setattr("backend.estimate.time.schedule.chunks_duration", None)
    assert iteration_time(forward_times, behind, 2, 8) == pytest.approx(expected)


def test_plans_are_distinguished_even_where_the_weighted_sums_of_their_times_are_equal():
    weights = np.random.default_rng(0).random(2)
    alike = np.array([[weights[1], 0.0], [0.0, weights[0]]])
    first, inverse = _distinct(alike)
    assert len(first) == 2
    assert np.array_equal(alike[:, first[inverse]], alike)


def test_a_heavy_chunk_costs_more_than_the_same_work_spread_over_its_stage():
    forward, backward = stages(4, 2, tower=0.3)
    spread = [sum(chunks) for chunks in forward], [sum(chunks) for chunks in backward]
    assert iteration_time(forward, backward, 2, 8) > iteration_time(*spread, 2, 8)


def test_fewer_micro_batches_than_stages_wait_for_each_other():
    assert iteration_time([1.0, 2.0], [2.0, 4.0], 1, 1) == 9.0


def test_the_events_of_a_stage_neither_overlap_nor_start_before_what_they_need():
    forward, backward = stages(4, 2, tower=0.4, head=0.2)
    events = simulate(forward, backward, 2, 8)
    assert len(events) == 2 * 4 * 2 * 8
    ends = {}
    for stage in range(4):
        own = sorted((event for event in events if event.stage == stage), key=lambda event: event.start)
        assert all(item.end <= following.start + 1e-9 for item, following in itertools.pairwise(own))
        ends |= {(stage, event.chunk, event.micro_batch, event.is_forward): event.end for event in own}
    for event in events:
        if event.is_forward and event.stage:
            assert ends[event.stage - 1, event.chunk, event.micro_batch, True] <= event.start + 1e-9
        if not event.is_forward:
            assert ends[event.stage, event.chunk, event.micro_batch, True] <= event.start + 1e-9


def test_interleaved_micro_batches_that_fill_no_group_are_refused():
    with pytest.raises(ValueError, match="groups of 4"):
        simulate([1.0] * 4, [1.0] * 4, 2, 6)


def test_the_textbook_bubble_of_two_stages_and_two_chunks():
    assert textbook_bubble(2, 2, 8) == pytest.approx(1 / 17)


def test_arrays_of_plans_give_what_numbers_give():
    counts = np.array([4, 8, 96, 16])
    forward = [1.0, np.array([1.2, 1.0, 1.1, 0.9]), 1.0, 1.5]
    backward = [[1.0, 1.2], 2.4, 2.0, 3.0]
    for virtual in (1, 2):
        forward_times = forward if virtual == 2 else [1.3, *forward[1:]]
        back = backward if virtual == 2 else [2.2, *backward[1:]]
        together = iteration_time(forward_times, back, virtual, counts)
        alone = [
            iteration_time(
                [forward_times[0], float(forward_times[1][index]), *forward_times[2:]], back, virtual, int(count)
            )
            for index, count in enumerate(counts)
        ]
        assert list(together) == pytest.approx(alone, rel=0.01)
        flying = in_flight(4, virtual, counts, 0)
        for position, count in enumerate(counts):
            local = [int(np.broadcast_to(chunk, 4)[position]) for chunk in flying]
            assert local == list(in_flight(4, virtual, int(count), 0))


def test_layers_are_dealt_to_stages_in_turns_and_accounted_ends_get_one_less():
    assert chunk_layers(equal_pieces(8, 4, with_embedding=False, with_loss=False), 2) == [
        [(0, 2), (4, 6)],
        [(2, 4), (6, 8)],
    ]
    assert chunk_layers(equal_pieces(94, 4, with_embedding=True, with_loss=True), 4) == [
        [(0, 23)],
        [(23, 47)],
        [(47, 71)],
        [(71, 94)],
    ]
