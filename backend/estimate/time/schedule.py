"""Pipeline schedules, 1F1B and Megatron's interleaved one: micro-batches in flight, time of an iteration, bubble.

What has an exact closed form is one; the time over unequal stages has none and comes from simulate.py.
"""

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

import numpy as np
import numpy.typing as npt

from backend.estimate.array_ops import Array, Flag, Number, clip, larger, largest, smaller
from backend.estimate.time.simulate import Places, Times, chunk_times, duration

Chunks = list[list[Number]]
"""For each stage the time of one micro-batch through each of its chunks."""
Chosen = Places | npt.NDArray[np.bool_] | tuple[Places, ...]


def in_flight(pipeline: int, virtual: int, micro_batches: Number, stage: int) -> tuple[Number, ...]:
    """For each model chunk of a stage, how many micro-batches keep activations in it at the fullest moment.

    1F1B: min(m, p - r). Interleaved: min(m v, 2 (p - r - 1) + (v - 1) p + 1) over all chunks, filled in the order of
    the forward passes: p micro-batches through each chunk in turn, then the next ones through the first chunk. A plain
    number also of many plans where it is the same of all.
    """
    if virtual == 1:
        return (smaller(micro_batches, pipeline - stage),)
    total = smaller(micro_batches * virtual, 2 * (pipeline - stage - 1) + (virtual - 1) * pipeline + 1)
    full = (total.min() if isinstance(total, np.ndarray) else total) // pipeline
    first_round = [
        pipeline if chunk < full else clip(total - chunk * pipeline, 0, pipeline) for chunk in range(virtual)
    ]
    return (first_round[0] + larger(0, total - virtual * pipeline), *first_round[1:])


def iteration_time(forward: Times, backward: Times, virtual: int, micro_batches: Number) -> Number:
    """Time of the compute part of an iteration, from each stage's forward and backward time of one micro-batch.

    A closed form where the last stage sets the pace. Else two micro-batches a stage are followed pass by pass, all
    where there are no more. Where the second took just what the slowest stage computes, so does every further one. Else
    64 are followed, and 8 a stage; then the order of passes has found its rhythm, and each further one takes what the
    last of them took, and at least the slowest stage's work. A stage's time may be given for each model chunk. In the
    unit of the arguments; arrays hold one entry a plan, and fewer micro-batches of them are followed. Raises ValueError
    where interleaved ones do not fill groups of PP.
    """
    pipeline = len(forward)
    over = micro_batches % pipeline
    if virtual > 1 and (over.any() if isinstance(over, np.ndarray) else over):
        raise ValueError(f"{micro_batches} micro-batches do not fill groups of {pipeline}")
    forward_chunks, backward_chunks = chunk_times(forward, virtual), chunk_times(backward, virtual)
    time, is_paced = _paced_by_last(forward_chunks, backward_chunks, virtual, micro_batches)
    if not isinstance(micro_batches, np.ndarray):
        return time if is_paced else _of_one(forward_chunks, backward_chunks, virtual, int(micro_batches))
    shape = np.broadcast_shapes(
        micro_batches.shape, *{np.shape(one) for way in (forward_chunks, backward_chunks) for one in chain(*way)}
    )
    chosen = np.nonzero(~np.broadcast_to(is_paced, shape))
    if len(chosen[0]):
        time = np.array(np.broadcast_to(time, shape), float)
        counts = np.broadcast_to(micro_batches, shape)[chosen]
        forward_chunks, backward_chunks = (
            _entries(forward_chunks, chosen, shape),
            _entries(backward_chunks, chosen, shape),
        )
        time[chosen] = _by_count(forward_chunks, backward_chunks, virtual, counts)
    return time


def _paced_by_last(forward: Chunks, backward: Chunks, virtual: int, micro_batches: Number) -> tuple[Number, Flag]:
    """The time where the last stage never waits once it has begun, and whether that is so.

    It begins when the first micro-batch is through the other stages, and these end when its last one is back through
    them. It never waits where no stage is slower: in 1F1B always; interleaved where chunks are alike, but for the
    model's last and a first that is no longer than others. (The test follows all passes.)
    """
    is_paced: Flag = True
    if virtual > 1 and len(forward) > 1:
        for way in (forward, backward):
            chunks = [time for stage in way for time in stage]
            plain = chunks[1:-1]
            is_paced = is_paced & (chunks[0] <= plain[0])
            if is_paced is False or not all(time is plain[0] or np.array_equal(time, plain[0]) for time in plain):
                return 0.0, False
    works = [
        sum(forward_chunks) + sum(backward_chunks)
        for forward_chunks, backward_chunks in zip(forward, backward, strict=True)
    ]
    for work in works[:-1]:
        is_paced = is_paced & (works[-1] >= work)
    ends = sum(
        forward_chunks[0] + backward_chunks[0]
        for forward_chunks, backward_chunks in zip(forward[:-1], backward[:-1], strict=True)
    )
    return micro_batches * works[-1] + ends, is_paced


def _of_one(forward: Chunks, backward: Chunks, virtual: int, micro_batches: int) -> Number:
    """The time of a plan in plain numbers whose passes are followed."""
    pipeline = len(forward)
    if micro_batches > 12 * pipeline:  # else following all is less work than to look
        times, settled = _settled(forward, backward, virtual, micro_batches)
        if settled:
            return times
    most = max(8, -(-64 // pipeline)) * pipeline
    if micro_batches <= most:
        return duration(forward, backward, virtual, micro_batches)
    return _beyond(forward, backward, virtual, micro_batches, most)


def _settled(forward: Chunks, backward: Chunks, virtual: int, micro_batches: Number) -> tuple[Number, Flag]:
    """The time of more than two micro-batches a stage if the rest take the slowest stage's work, and whether they do.

    They do from where they first did: the slowest stage then has no gap, and more micro-batches open none. (The test
    follows all passes of stages that differ, and of chunks that differ at the model's ends.)
    """
    pipeline = len(forward)
    slowest = _slowest(forward, backward, virtual)
    first, both = (duration(forward, backward, virtual, count) for count in (pipeline, 2 * pipeline))
    settled: Flag = np.abs(both - first - pipeline * slowest) <= 1e-9 * both
    return both + (micro_batches - 2 * pipeline) * slowest, settled


def _beyond(forward: Chunks, backward: Chunks, virtual: int, micro_batches: Number, most: int) -> Number:
    """The time of more than `most` micro-batches, of which `most` are followed."""
    pipeline = len(forward)
    whole, shorter = (duration(forward, backward, virtual, count) for count in (most, most - pipeline))
    more = micro_batches - most
    return whole + more * largest((whole - shorter) / pipeline, _slowest(forward, backward, virtual))


def _slowest(forward: Chunks, backward: Chunks, virtual: int) -> Number:
    """The most that one micro-batch asks of any stage."""
    return largest(*[sum(f) + sum(b) for f, b in _by_stage(forward, backward, virtual)])


def _by_stage(forward: Times, backward: Times, virtual: int) -> list[tuple[list[Number], list[Number]]]:
    return list(zip(chunk_times(forward, virtual), chunk_times(backward, virtual), strict=True))


def _by_count(forward: Chunks, backward: Chunks, virtual: int, micro_batches: Array) -> Array:
    """The times of plans in arrays whose passes are followed, of those that are alike once."""
    arrays = {id(time): time for way in (forward, backward) for stage in way for time in stage if np.ndim(time)}
    first, inverse = _distinct(np.stack([micro_batches, *arrays.values()]))
    forward_chunks, backward_chunks = _entries(forward, first), _entries(backward, first)
    return _of_distinct(forward_chunks, backward_chunks, virtual, micro_batches[first])[inverse]


def _distinct(columns: Array) -> tuple[Places, Places]:
    """The place of one of each kind of equal columns, and for every column the number of its kind.

    Columns are told apart by a weighted sum, which sorts faster than they do; where that is not enough, by themselves.
    """
    weights = np.random.default_rng(0).random(len(columns))
    _, first, inverse = np.unique(weights @ columns, return_index=True, return_inverse=True)
    if not np.array_equal(columns[:, first[inverse]], columns):
        _, first, inverse = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return first, inverse.ravel()


def _of_distinct(forward: Chunks, backward: Chunks, virtual: int, micro_batches: Array) -> Array:
    """The same of plans that all differ, up to what is followed of many plans."""
    pipeline = len(forward)
    most = _followed_of_many(virtual, pipeline) * pipeline
    times, open_still = np.empty(len(micro_batches)), np.ones(len(micro_batches), bool)
    rows = np.flatnonzero(micro_batches > 2 * pipeline)
    if len(rows):
        forward_chunks, backward_chunks = _entries(forward, rows), _entries(backward, rows)
        times[rows], settled = _settled(forward_chunks, backward_chunks, virtual, micro_batches[rows])
        open_still[rows[settled]] = False
    counts = np.where(open_still, np.minimum(micro_batches, most + 1), 0)
    for count in np.unique(counts[open_still]).tolist():
        chosen = counts == count
        forward_chunks, backward_chunks = _entries(forward, chosen), _entries(backward, chosen)
        if count <= most:
            times[chosen] = duration(forward_chunks, backward_chunks, virtual, count)
        else:
            times[chosen] = _beyond(forward_chunks, backward_chunks, virtual, micro_batches[chosen], most)
    return times


def _followed_of_many(virtual: int, pipeline: int) -> int:
    """Micro-batches a stage that are followed where plans are many: thousands are compared within the time of one edit.

    Up to 8 a stage, pipelines of usual depth are exact: a table says what its chosen plan says. Beyond, and for deep
    pipelines, the iteration differs by less than 2% on the grid of the test. Many chunks find their rhythm sooner.
    """
    if pipeline <= 8:
        return 8
    return 3 if virtual < 4 else 2


def _entries(times: Chunks, chosen: Chosen, shape: tuple[int, ...] | None = None) -> Chunks:
    """These plans' times of each chunk, first spread to a shape where there is one; what is one object stays one."""
    known: dict[int, Number] = {}

    def entries(time: Number) -> Number:
        if not isinstance(time, np.ndarray):
            return time
        if id(time) not in known:
            known[id(time)] = (np.broadcast_to(time, shape) if shape else time)[chosen]
        return known[id(time)]

    return [[entries(time) for time in chunks] for chunks in times]


def bubble_fraction(forward: Times, backward: Times, virtual: int, micro_batches: Number) -> Number:
    """1 - mean busy time of the stages / compute part of the iteration; unequal stages count as idle time."""
    busy = sum(sum(f) + sum(b) for f, b in _by_stage(forward, backward, virtual)) / len(forward)
    return 1 - micro_batches * busy / iteration_time(forward, backward, virtual, micro_batches)


def textbook_bubble(pipeline: int, virtual: int, micro_batches: Number) -> Number:
    """The same for equal stages: x / (1 + x) with x = (p - 1) / (v m)."""
    extra = (pipeline - 1) / (virtual * micro_batches)
    return extra / (1 + extra)


def equal_pieces(layers: int, pieces: int, *, with_embedding: bool, with_loss: bool) -> tuple[int, ...]:
    """Layers of each piece; the embedding or the loss counts as one of the first or last piece's where asked for."""
    each = (layers + with_embedding + with_loss) // pieces
    last = pieces - 1
    return tuple(each - (with_embedding and piece == 0) - (with_loss and piece == last) for piece in range(pieces))


def chunk_layers(pieces: Sequence[int], pipeline: int) -> list[list[tuple[int, int]]]:
    """For each stage, the [first, last) layers of each of its chunks, from the layers of each piece.

    Chunk c of stage r is the (c p + r)-th piece.
    """
    bounds = list(pairwise(accumulate(pieces, initial=0)))
    return [bounds[stage::pipeline] for stage in range(pipeline)]
