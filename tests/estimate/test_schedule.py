"""The closed forms of the schedules agree with an event simulation of Megatron's orders of passes."""

import itertools

import numpy as np
import pytest

from backend.estimate.schedule import bubble_fraction, chunk_layers, in_flight, iteration_time, textbook_bubble

GRID = [
    (pipeline, virtual, micro_batches)
    for pipeline, virtual, micro_batches in itertools.product((1, 2, 3, 4, 8), (1, 2, 4), (1, 2, 4, 8, 16, 24))
    if virtual == 1 or (pipeline > 1 and micro_batches % pipeline == 0)
]


def passes(pipeline, virtual, micro_batches, stage):
    """The order in which a stage runs its forward and backward passes: (kind, chunk, micro-batch)."""
    group, count = pipeline * virtual, micro_batches * virtual

    def unit(kind, index):
        chunk = index % group // pipeline
        return kind, chunk if kind == "F" else virtual - 1 - chunk, index // group * pipeline + index % pipeline

    if virtual == 1:
        warm_up = min(pipeline - stage - 1, micro_batches)
        forward = [("F", 0, index) for index in range(count)]
        backward = [("B", 0, index) for index in range(count)]
    else:
        warm_up = min(2 * (pipeline - stage - 1) + (virtual - 1) * pipeline, count)
        forward = [unit("F", index) for index in range(count)]
        backward = [unit("B", index) for index in range(count)]
    steady = [step for pair in zip(forward[warm_up:], backward, strict=False) for step in pair]
    return [*forward[:warm_up], *steady, *backward[count - warm_up :]]


def waits_for(step, stage, pipeline, virtual):
    """The pass whose result a pass needs; None for a first one."""
    kind, chunk, index = step
    if kind == "F":
        if stage == 0 and chunk == 0:
            return None
        return ("F", stage - 1, chunk, index) if stage else ("F", pipeline - 1, chunk - 1, index)
    if stage == pipeline - 1:
        return ("F", stage, chunk, index) if chunk == virtual - 1 else ("B", 0, chunk + 1, index)
    return "B", stage + 1, chunk, index


def simulate(pipeline, virtual, micro_batches, forward, backward):
    """(time of the iteration, per stage the micro-batches in each chunk at its fullest moment)."""
    orders = [passes(pipeline, virtual, micro_batches, stage) for stage in range(pipeline)]
    done, clocks = {}, [0.0] * pipeline
    holding = [[0] * virtual for _ in range(pipeline)]
    fullest = [[0] * virtual for _ in range(pipeline)]
    while any(orders):
        moved = False
        for stage, order in enumerate(orders):
            while order:
                needed = waits_for(order[0], stage, pipeline, virtual)
                if needed is not None and needed not in done:
                    break
                kind, chunk, index = order.pop(0)
                moved = True
                taken = (forward if kind == "F" else backward)[stage] / virtual
                clocks[stage] = max(clocks[stage], done.get(needed, 0.0)) + taken
                done[kind, stage, chunk, index] = clocks[stage]
                holding[stage][chunk] += 1 if kind == "F" else -1
                if sum(holding[stage]) > sum(fullest[stage]):
                    fullest[stage] = list(holding[stage])
        assert moved, "the schedule dead-locks"
    return max(clocks), [tuple(counts) for counts in fullest]


@pytest.mark.parametrize(("pipeline", "virtual", "micro_batches"), GRID)
def test_equal_stages_match_the_simulation_exactly(pipeline, virtual, micro_batches):
    forward, backward = [1.0] * pipeline, [2.0] * pipeline
    time, fullest = simulate(pipeline, virtual, micro_batches, forward, backward)
    assert iteration_time(forward, backward, virtual, micro_batches) == pytest.approx(time)
    expected = textbook_bubble(pipeline, virtual, micro_batches)
    assert bubble_fraction(forward, backward, virtual, micro_batches) == pytest.approx(expected)
    assert [in_flight(pipeline, virtual, micro_batches, stage) for stage in range(pipeline)] == fullest


@pytest.mark.parametrize("heavy", ["first", "last", "both", "middle"])
@pytest.mark.parametrize(("pipeline", "virtual", "micro_batches"), [case for case in GRID if case[2] >= 8])
def test_unequal_stages_match_the_simulation(pipeline, virtual, micro_batches, heavy):
    weights = [1.0] * pipeline
    weights[0] += 0.3 * (heavy in ("first", "both"))
    weights[-1] += 0.4 * (heavy in ("last", "both"))
    weights[pipeline // 2] += 0.25 * (heavy == "middle")
    backward = [2 * weight for weight in weights]
    time, _ = simulate(pipeline, virtual, micro_batches, weights, backward)
    ours = iteration_time(weights, backward, virtual, micro_batches)
    if virtual == 1 or heavy == "last":
        assert ours == pytest.approx(time)
    else:
        assert time <= ours + 1e-9
        assert ours <= 1.15 * time


def test_the_textbook_bubble_of_two_stages_and_two_chunks():
    assert textbook_bubble(2, 2, 8) == pytest.approx(1 / 17)


def test_arrays_of_micro_batches_give_what_numbers_give():
    counts = np.array([4, 8, 16])
    forward, backward = [1.0, 1.2, 1.0, 1.5], [2.0, 2.4, 2.0, 3.0]
    for virtual in (1, 2):
        together = iteration_time(forward, backward, virtual, counts)
        assert list(together) == [iteration_time(forward, backward, virtual, int(count)) for count in counts]
        flying = in_flight(4, virtual, counts, 0)
        for position, count in enumerate(counts):
            assert [int(chunk[position]) for chunk in flying] == list(in_flight(4, virtual, int(count), 0))


def test_layers_are_dealt_to_stages_in_turns_and_accounted_ends_get_one_less():
    assert chunk_layers(8, 2, 2) == [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]
    assert chunk_layers(94, 4, 1, with_embedding=True, with_loss=True) == [
        [(0, 23)],
        [(23, 47)],
        [(47, 71)],
        [(71, 94)],
    ]
