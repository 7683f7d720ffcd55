"""Lengths of the sequences that a step computes if samples are shorter than cutoff_len.

Two effects make them longer than the mean: padding, and the copy of the model with the longest samples, for which the
other copies wait. Lengths have an exponential distribution that is cut at cutoff_len (backend/job/lengths.py). Every
copy draws its own samples.
"""

from functools import lru_cache
from math import exp

import numpy as np
from numpy import ndarray

from backend.estimate.array_ops import Array, Number, choose, larger, smaller
from backend.estimate.memory.padded_packs import is_padded, mean_pack
from backend.estimate.memory.worst_microbatch import DOUBLINGS, expected_maximum
from backend.estimate.plan import Plan, plan_of
from backend.job.attention import masks_packs
from backend.job.batch import padding
from backend.job.job import Job

_ROUNDED = 8
"""LLaMA-Factory pads sequences to a multiple of this number on its Hugging Face engines, except in pt."""
_MULTIPLE = 64
"""mcore_adapter pads sequences to a multiple of this number in sft and dpo (LLaMA-Factory train/mca/workflow.py)."""


def computed_length(job: Job) -> Number:
    """Return the tokens of a mean sequence after padding to its micro-batch; sizes of the job may be arrays.

    `slowest_share` adds the effects of the step and of the other copies of the model.
    """
    training = job.training
    if is_padded(job):
        return mean_pack(job).tokens
    if not _varies(job):
        return job.longest_sequence
    if padding(job) == "nothing":
        return job.sequence_tokens
    count = training.micro_batch_size * job.sequences_per_sample
    longest = _longest(job, count)[0]
    if padding(job) == "micro_batch" or training.stage == "pt":
        return longest + job.completion_tokens
    # Sequences that are cut need no padding.
    uncut = (1 - exp(-training.cutoff_len / (training.sample_tokens or 1))) ** count
    return choose(job.parallel.expert > 1, training.cutoff_len, longest + uncut * (_MULTIPLE - 1) / 2)


def attended_length(job: Job) -> float | None:
    """Return the tokens of the sample that contains a mean token, if attention stays within concatenated samples.

    This holds for ms-swift's padding_free and for LLaMA-Factory's packing with neat_packing, if it needs no mask of all
    pairs of tokens. Padded packs attend to their longest sample. Returns None if attention covers the whole sequence.
    """
    if is_padded(job):
        return mean_pack(job).attended
    training = job.training
    packed = training.packing and any(job.extra.get(key) for key in ("neat_packing", "sequence_packing"))
    packed = packed and not masks_packs(job)
    if training.sample_tokens is None or not (packed or padding(job) == "nothing"):
        return None
    mean, cut = training.sample_tokens, exp(-training.cutoff_len / training.sample_tokens)
    return 2 * mean * (1 - cut * (1 + training.cutoff_len / mean)) / (1 - cut)


def masked_share(job: Job) -> Number:
    """Return the share of micro-batches in which torch's SDPA gets a mask of all pairs of tokens.

    LLaMA-Factory makes one for packs (masks_packs). transformers makes one if any sequence of a micro-batch is padded
    (5.5.4, 5.6.0 and 5.19.0 masking_utils.py sdpa_mask: it leaves the mask out if `padding_mask.all()`). Sequences that
    are cut need no padding. A sequence that is alone has some if LLaMA-Factory pads it to a multiple of 8 (0.9.5
    train/sft/workflow.py, dpo, kto and rm: pad_to_multiple_of; not pt).
    """
    if masks_packs(job):
        return 1.0
    training = job.training
    if not _varies(job):
        return 0.0
    count = training.micro_batch_size * job.sequences_per_sample
    cut = exp(-training.cutoff_len / (training.sample_tokens or 1))
    is_rounded = job.traits.environment == "llamafactory" and training.stage != "pt"
    alone = (1 - cut) * (_ROUNDED - 1) / _ROUNDED if is_rounded else 0.0
    return choose(count > 1, 1 - cut**count, alone)


def slowest_share(job: Job, plan: Plan) -> Number:
    """Return the length of sequences on the slowest copy of the model in a step, over `computed_length`.

    Copies wait for each other at the end of a step. With ZeRO-3, FSDP and expert parallelism they wait in every
    micro-batch.
    """
    if not _varies(job):
        return 1.0
    longest_of, draws, waits = plan.micro_batch, plan.micro_batches, plan.expert > 1
    if padding(job) == "nothing":
        longest_of, draws = 1, plan.micro_batch * plan.micro_batches
    elif padding(job) == "step" and not job.extra.get("variable_seq_lengths"):
        together = plan.pipeline > 1
        longest_of, draws = choose(together, longest_of * draws, longest_of), choose(together, 1, draws)
    if job.traits.zero_stage == 3 or job.traits.is_fsdp:
        waits = True
    draws = choose(waits, draws / plan.micro_batches, draws)
    mean, deviation = _longest(job, longest_of)
    # Sums of several draws are nearly normal; one draw has the distribution of the lengths.
    single, sums = _longest(job, longest_of * plan.data)[0], mean + expected_maximum(plan.data) * deviation / draws**0.5
    slowest = smaller(choose(draws <= 1, single, sums), job.training.cutoff_len) + job.completion_tokens
    return larger(1.0, slowest / computed_length(job))


def padding_share(job: Job) -> float:
    """Return the share of padding and waiting in a step; 0 if the length of samples is unknown."""
    return 1 - float(job.sequence_tokens / longest_length(job))


def longest_length(job: Job) -> float:
    """Return the tokens of a mean sequence on the slowest copy, padding included."""
    return float(computed_length(job) * slowest_share(job, plan_of(job, None)))


def _varies(job: Job) -> bool:
    return job.training.sample_tokens is not None and not job.training.packing


def _longest(job: Job, count: Number) -> tuple[Number, Number]:
    """Return the mean and the standard deviation of the longest of `count` cut samples."""
    mean, cutoff = float(job.training.sample_tokens or 0), job.training.cutoff_len
    if isinstance(count, ndarray):
        return _interpolated(mean, cutoff, count)
    return _longest_of(mean, cutoff, count)


@lru_cache(maxsize=1024)
def _longest_of(mean: float, cutoff: int, count: float) -> tuple[float, float]:
    longest, deviation = _interpolated(mean, cutoff, count)
    return float(longest), float(deviation)


def _interpolated(mean: float, cutoff: int, count: Number) -> tuple[Number, Number]:
    means, deviations = _curves(mean, cutoff)
    doublings = np.log2(count)
    return np.interp(doublings, DOUBLINGS, means), np.interp(doublings, DOUBLINGS, deviations)


@lru_cache(maxsize=16)
def _curves(mean: float, cutoff: int) -> tuple[Array, Array]:
    """Return, by doublings, the integrals of P(longest > x) and of 2 x P(longest > x), without the negligible tail."""
    length = np.linspace(0, min(cutoff, 40 * mean), 2049)
    longer = 1 - (1 - np.exp(-length / mean)) ** (2.0 ** DOUBLINGS[:, None])
    first = np.trapezoid(longer, length)
    second = np.trapezoid(2 * length * longer, length)
    return first, np.sqrt(np.maximum(second - first**2, 0))
