"""Packs whose samples ms-swift's Megatron pads to the longest of them, because unfused attention does not pack.

ms-swift 4.6.0 makes the packs before the trainer switches padding_free off (megatron/model/utils.py
_check_padding_free). template/base.py data_collator then makes one padded batch of all samples of a pack.
"""

from functools import lru_cache
from math import log
from typing import NamedTuple

from backend.job.batch import padding
from backend.job.job import Job

TOGETHER = 1000
"""Samples that are packed together (4.6.0 dataset/packing.py PACKING_BATCH_SIZE)."""


class PaddedPack(NamedTuple):
    """A padded batch, in tokens."""

    tokens: float
    """All tokens, padding included."""
    attended: float
    """Tokens to which a mean token attends: those of the longest sample of its pack."""


def is_padded(job: Job) -> bool:
    """Return whether the packs of a job are padded and the mean length of its samples is known."""
    training = job.training
    is_unfused = job.traits.pads == "nothing" and padding(job) != "nothing"
    return is_unfused and training.packing and training.sample_tokens is not None


def largest_pack(job: Job) -> PaddedPack:
    """Return the most tokens of a pack, and attention to so many tokens that they have the most scores of a pack.

    Memory follows both, and no pack needs more. Often another pack has the most scores: it has fewer, longer samples.
    """
    packs = _packs_of(job)
    tokens = max(pack.tokens for pack in packs)
    return PaddedPack(tokens, max(pack.tokens * pack.attended for pack in packs) / tokens)


def mean_pack(job: Job) -> PaddedPack:
    """Return the mean of the packs: their tokens, and the tokens to which a mean token attends."""
    packs = _packs_of(job)
    tokens = sum(pack.tokens for pack in packs)
    return PaddedPack(tokens / len(packs), sum(pack.tokens * pack.attended for pack in packs) / tokens)


def _packs_of(job: Job) -> tuple[PaddedPack, ...]:
    samples = min(TOGETHER, job.training.samples or TOGETHER)
    return _packs(float(job.training.sample_tokens or 0), job.training.cutoff_len, samples)


@lru_cache(maxsize=16)
def _packs(mean: float, cutoff: int, samples: int) -> tuple[PaddedPack, ...]:
    """Return the packs of samples at the quantiles of the distribution of lengths (backend/job/lengths.py).

    Samples come in the order of their length, and each goes into the fullest pack that has room for it (binpacking
    2.0.1 to_constant_volume.py).
    """
    lengths = [min(cutoff, -mean * log((place + 0.5) / samples)) for place in range(samples)]
    packs: list[list[float]] = []
    filled: list[float] = []
    for length in lengths:
        fitting = [index for index, tokens in enumerate(filled) if tokens + length <= cutoff]
        if fitting:
            fullest = max(fitting, key=lambda index: filled[index])
            packs[fullest].append(length)
            filled[fullest] += length
        else:
            packs.append([length])
            filled.append(length)
    return tuple(PaddedPack(len(pack) * pack[0], pack[0]) for pack in packs)
