"""Pipeline schedules 1F1B and interleaved 1F1B: micro-batches in flight, time of an iteration, bubble.

Results with a closed form use it. The time over unequal stages has no closed form and comes from simulate.py.
"""

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from operator import add

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from backend.estimate.array_ops import Array, Flag, Number, clip, larger, largest, smaller
from backend.estimate.time.simulate import Chunks, Places, Times, chunk_times, chunks_duration

Chosen = Places | npt.NDArray[np.bool_] | tuple[Places, ...]


def in_flight(pipeline: int, virtual: int, micro_batches: Number, stage: int) -> tuple[Number, ...]:
    """Return, for each model chunk of a stage, the peak number of micro-batches whose activations it keeps.

    1F1B: min(m, p - r). Interleaved: min(m v, 2 (p - r - 1) + (v - 1) p + 1) over all chunks, filled in the order of
    the forward passes: p micro-batches through each chunk in turn, then the next ones through the first chunk. The
    result is a plain number for arrays of plans too where all plans have the same number.
    """
    if virtual == 1:
        return (smaller(micro_batches, pipeline - stage),)
    total = smaller(micro_batches * virtual, 2 * (pipeline - stage - 1) + (virtual - 1) * pipeline + 1)
    full = (total.min() if type(total) is ndarray else total) // pipeline
    first_round = [
        pipeline if chunk < full else clip(total - chunk * pipeline, 0, pipeline) for chunk in range(virtual)
    ]
    return (first_round[0] + larger(0, total - virtual * pipeline), *first_round[1:])


def iteration_time(forward: Times, backward: Times, virtual: int, micro_batches: Number) -> Number:
    """Return the compute time of an iteration, from the forward and backward time of one micro-batch on each stage.

    - If the last stage sets the pace, the time has a closed form.
    - Otherwise 2 micro-batches per stage are simulated, or all if there are no more. If the second round took exactly
      the work of the slowest stage, every further round takes the same.
    - Otherwise 64 micro-batches are simulated, and at least 8 per stage. By then the order of passes is periodic: each
      further round takes the time of the last simulated round, and at least the work of the slowest stage.

    The time of a stage may be given for each of its model chunks. The result has the unit of the arguments. Arrays hold
    one entry for each plan, and fewer of their micro-batches are simulated. Raises ValueError if interleaved
    micro-batches do not fill groups of PP.
    """
    pipeline = len(forward)
    over = micro_batches % pipeline
    if virtual > 1 and (over.any() if type(over) is ndarray else over):
        raise ValueError(f"{micro_batches} micro-batches do not fill groups of {pipeline}")
    forward_chunks, backward_chunks = chunk_times(forward, virtual), chunk_times(backward, virtual)
    time, is_paced = _paced_by_last(forward_chunks, backward_chunks, virtual, micro_batches)
    if type(micro_batches) is not ndarray:
        return time if is_paced else _of_one(forward_chunks, backward_chunks, virtual, int(micro_batches))
    shape = np.broadcast_shapes(
        micro_batches.shape, *{np.shape(item) for way in (forward_chunks, backward_chunks) for item in chain(*way)}
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
    """Return the time if the last stage never waits after its start, and whether it never waits.

    The last stage starts when the first micro-batch has passed the other stages. The other stages end when the last
    micro-batch has passed back through them. The last stage never waits if no stage is slower. With interleaving, the
    chunks must also be equal, except the last chunk of the model and a first chunk that is no longer than the others.
    The test compares this with the simulation.
    """
    is_paced: Flag = True
    if virtual > 1 and len(forward) > 1:
        for way in (forward, backward):
            chunks = [time for stage in way for time in stage]
            plain = chunks[1:-1]
            is_paced = is_paced & (chunks[0] <= plain[0])
            if is_paced is False or not all(time is plain[0] or np.array_equal(time, plain[0]) for time in plain):
                return 0.0, False
    works = _works(forward, backward)
    for work in works[:-1]:
        is_paced = is_paced & (works[-1] >= work)
    ends = sum([chunks[0] + backward[stage][0] for stage, chunks in enumerate(forward[:-1])])
    return micro_batches * works[-1] + ends, is_paced


def _of_one(forward: Chunks, backward: Chunks, virtual: int, micro_batches: int) -> Number:
    """Return the simulated time of a single plan."""
    pipeline = len(forward)
    if micro_batches > 12 * pipeline:  # for fewer, the simulation of all is cheaper than the test
        times, settled = _settled(forward, backward, virtual, micro_batches)
        if settled:
            return times
    most = max(8, -(-64 // pipeline)) * pipeline
    if micro_batches <= most:
        return chunks_duration(forward, backward, virtual, micro_batches)
    return _beyond(forward, backward, virtual, micro_batches, most)


def _settled(forward: Chunks, backward: Chunks, virtual: int, micro_batches: Number) -> tuple[Number, Flag]:
    """Return the time of more than 2 micro-batches per stage if further rounds take the work of the slowest stage, and
    whether they do.

    If the second round took that time, the slowest stage has no gap, and more micro-batches open none. The test
    compares this with the simulation, for stages that differ and for chunks that differ at the ends of the model.
    """
    pipeline = len(forward)
    slowest = _slowest(forward, backward)
    one_round, two_rounds = (chunks_duration(forward, backward, virtual, count) for count in (pipeline, 2 * pipeline))
    settled: Flag = np.abs(two_rounds - one_round - pipeline * slowest) <= 1e-9 * two_rounds
    return two_rounds + (micro_batches - 2 * pipeline) * slowest, settled


def _beyond(forward: Chunks, backward: Chunks, virtual: int, micro_batches: Number, most: int) -> Number:
    """Return the time of more than `most` micro-batches, of which `most` are simulated."""
    pipeline = len(forward)
    longer, shorter = (chunks_duration(forward, backward, virtual, count) for count in (most, most - pipeline))
    more = micro_batches - most
    return longer + more * largest((longer - shorter) / pipeline, _slowest(forward, backward))


def _slowest(forward: Chunks, backward: Chunks) -> Number:
    """Return the work of the slowest stage for one micro-batch."""
    return largest(*_works(forward, backward))


def _works(forward: Chunks, backward: Chunks) -> list[Number]:
    """Return the work of each stage for one micro-batch."""
    return list(map(add, map(sum, forward), map(sum, backward)))


def _by_count(forward: Chunks, backward: Chunks, virtual: int, micro_batches: Array) -> Array:
    """Return the simulated times of arrays of plans; equal plans are simulated once."""
    arrays = {id(time): time for way in (forward, backward) for stage in way for time in stage if np.ndim(time)}
    first, inverse = _distinct(np.stack([micro_batches, *arrays.values()]))
    forward_chunks, backward_chunks = _entries(forward, first), _entries(backward, first)
    return _of_distinct(forward_chunks, backward_chunks, virtual, micro_batches[first])[inverse]


def _distinct(columns: Array) -> tuple[Places, Places]:
    """Return the index of one column of each kind of equal columns, and for every column the index of its kind.

    A weighted sum distinguishes columns, because sums sort faster than columns. If sums are not enough, the columns do.
    """
    weights = np.random.default_rng(0).random(len(columns))
    _, first, inverse = np.unique(weights @ columns, return_index=True, return_inverse=True)
    if not np.array_equal(columns[:, first[inverse]], columns):
        _, first, inverse = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return first, inverse.ravel()


def _of_distinct(forward: Chunks, backward: Chunks, virtual: int, micro_batches: Array) -> Array:
    """Return the simulated times of plans that all differ, up to the limit for many plans."""
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
            times[chosen] = chunks_duration(forward_chunks, backward_chunks, virtual, count)
        else:
            times[chosen] = _beyond(forward_chunks, backward_chunks, virtual, micro_batches[chosen], most)
    return times


def _followed_of_many(virtual: int, pipeline: int) -> int:
    """Return the micro-batches per stage to simulate for arrays of plans: thousands of plans are compared within one
    edit.

    Up to 8 per stage, pipelines of usual depth are exact, so the table agrees with the estimate of the chosen plan. For
    more micro-batches, and for deep pipelines, the iteration differs by less than 2% on the grid of the test. Many
    chunks become periodic sooner.
    """
    if pipeline <= 8:
        return 8
    return 3 if virtual < 4 else 2


def _entries(times: Chunks, chosen: Chosen, shape: tuple[int, ...] | None = None) -> Chunks:
    """Return the times of each chunk for some plans, broadcast to `shape` first if it is given. Equal objects stay one
    object."""
    cached: dict[int, Number] = {}

    def entries(time: Number) -> Number:
        if type(time) is not ndarray:
            return time
        if id(time) not in cached:
            cached[id(time)] = (np.broadcast_to(time, shape) if shape else time)[chosen]
        return cached[id(time)]

    return [[entries(time) for time in chunks] for chunks in times]


def bubble_fraction(forward: Times, backward: Times, virtual: int, micro_batches: Number) -> Number:
    """Return 1 - mean busy time of the stages / compute time of the iteration; unequal stages count as idle time."""
    works = _works(chunk_times(forward, virtual), chunk_times(backward, virtual))
    busy = sum(works) / len(forward)
    return 1 - micro_batches * busy / iteration_time(forward, backward, virtual, micro_batches)


def textbook_bubble(pipeline: int, virtual: int, micro_batches: Number) -> Number:
    """Return the bubble fraction of equal stages: x / (1 + x) with x = (p - 1) / (v m)."""
    extra = (pipeline - 1) / (virtual * micro_batches)
    return extra / (1 + extra)


def equal_pieces(layers: int, pieces: int, *, with_embedding: bool, with_loss: bool) -> tuple[int, ...]:
    """Return the layers of each piece. The embedding and the loss count as one layer of the first and last piece if
    requested."""
    per_piece = (layers + with_embedding + with_loss) // pieces
    last = pieces - 1
    return tuple(per_piece - (with_embedding and piece == 0) - (with_loss and piece == last) for piece in range(pieces))


def chunk_layers(pieces: Sequence[int], pipeline: int) -> list[list[tuple[int, int]]]:
    """Return the [first, last) layers of each chunk of each stage, from the layers of each piece.

    Chunk c of stage r is the (c p + r)-th piece.
    """
    bounds = list(pairwise(accumulate(pieces, initial=0)))
    return [bounds[stage::pipeline] for stage in range(pipeline)]
