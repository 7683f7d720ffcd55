"""Pipeline schedules in closed form: micro-batches in flight, time of an iteration, bubble.

1F1B and Megatron's interleaved schedule (micro-batch groups of PP). Checked against an event simulation in
tests/estimate/test_schedule.py.
"""

from collections.abc import Sequence

from backend.estimate.numeric import Number, clip, largest, least


def in_flight(pipeline: int, virtual: int, micro_batches: Number, stage: int) -> tuple[Number, ...]:
    """For each model chunk of a stage, how many micro-batches keep activations in it at the fullest moment.

    1F1B: min(m, p - r). Interleaved: min(m v, 2 (p - r - 1) + (v - 1) p + 1) over all chunks, filled in the order of
    the forward passes: p micro-batches through each chunk in turn, then the next ones through the first chunk.
    """
    if virtual == 1:
        return (least(micro_batches, pipeline - stage),)
    total = least(micro_batches * virtual, 2 * (pipeline - stage - 1) + (virtual - 1) * pipeline + 1)
    first_round = tuple(clip(total - chunk * pipeline, 0, pipeline) for chunk in range(virtual))
    return (first_round[0] + largest(0, total - virtual * pipeline), *first_round[1:])


def iteration_time(
    forward: Sequence[Number], backward: Sequence[Number], virtual: int, micro_batches: Number
) -> Number:
    """Time of the compute part of an iteration, from each stage's forward and backward time of one micro-batch.

    Stage k is busy for m (f + b). Before its first forward and after its last backward, one micro-batch passes the
    stages in front of it. Behind it, one passes the later stages and comes back, which takes R; under 1F1B the stage
    fills the start of that wait with its w = p - 1 - k warm-up forwards and the end with as many backwards. The
    largest of these sums over k is the iteration. For equal stages it is (m - 1 + p) (f + b).

    Interleaved: m max + (sum - max) / v, exact unless an early stage is the slowest; then too long, by at most 15%
    on the grid of the test. In the unit of the arguments.
    """
    stages = len(forward)
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    total = sum(both)
    if virtual > 1:
        slowest = largest(*both)
        return micro_batches * slowest + (total - slowest) / virtual
    candidates, before = [], 0.0
    for stage, (f, b) in enumerate(zip(forward, backward, strict=True)):
        warm_up = stages - 1 - stage
        behind = total - before - both[stage]
        waits = largest(0, behind - warm_up * f) + largest(0, behind - warm_up * b)
        candidates.append(before + micro_batches * both[stage] + waits)
        before += both[stage]
    return largest(*candidates)


def bubble_fraction(
    forward: Sequence[Number], backward: Sequence[Number], virtual: int, micro_batches: Number
) -> Number:
    """1 - mean busy time of the stages / compute part of the iteration; unequal stages count as idle time."""
    busy = micro_batches * (sum(forward) + sum(backward)) / len(forward)
    return 1 - busy / iteration_time(forward, backward, virtual, micro_batches)


def textbook_bubble(pipeline: int, virtual: int, micro_batches: Number) -> Number:
    """The same for equal stages: x / (1 + x) with x = (p - 1) / (v m)."""
    extra = (pipeline - 1) / (virtual * micro_batches)
    return extra / (1 + extra)


def chunk_layers(
    layers: int, pipeline: int, virtual: int, *, with_embedding: bool = False, with_loss: bool = False
) -> list[list[tuple[int, int]]]:
    """For each stage, the [first, last) layers of each of its chunks; chunk c of stage r is the (c p + r)-th piece.

    The embedding or the loss counts as one layer of the first or last piece where asked for.
    """
    pieces = pipeline * virtual
    each = (layers + with_embedding + with_loss) // pieces
    bounds = [0]
    for piece in range(pieces):
        taken = each - (with_embedding and piece == 0) - (with_loss and piece == pieces - 1)
        bounds.append(bounds[-1] + taken)
    return [
        [(bounds[chunk * pipeline + stage], bounds[chunk * pipeline + stage + 1]) for chunk in range(virtual)]
        for stage in range(pipeline)
    ]
