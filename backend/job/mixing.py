"""How the data sets of a job become one: joined, or interleaved by shares."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backend.job.job import Job

CONCAT = "concat"
OF_SWIFT = {"interleave_under": "first_exhausted", "interleave_over": "all_exhausted"}
"""`mix_strategy` -> ms-swift's `stopping_strategy`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixing:
    """How the data sets of a job become one."""

    strategy: str
    shares: tuple[float, ...] | None
    """Share of each data set. None: equal shares, or nothing is interleaved."""

    @property
    def interleaves(self) -> bool:
        """Return whether the rows of the data sets alternate."""
        return self.strategy != CONCAT


def mixing_of(job: Job) -> Mixing:
    """Return how the job mixes its data sets, also where `extra` has the engine's keys.

    ms-swift interleaves only with shares (4.6.0 swift/dataset/loader.py load_dataset).
    """
    training, extra = job.training, job.extra
    if job.traits.environment == "swift":
        shares = shares_in(training.interleave_probs or extra.get("interleave_prob"))
        strategy: str = training.mix_strategy
        if strategy == CONCAT and training.interleave_probs is None and shares is not None:
            stops_at = extra.get("stopping_strategy")
            strategy = next((name for name, stop in OF_SWIFT.items() if stop == stops_at), "interleave_under")
        return Mixing(strategy=strategy, shares=shares)
    strategy = training.mix_strategy if training.mix_strategy != CONCAT else str(extra.get("mix_strategy") or CONCAT)
    return Mixing(strategy=strategy, shares=shares_in(training.interleave_probs or extra.get("interleave_probs")))


def shares_in(value: Any) -> tuple[float, ...] | None:
    """Return the shares in a text or a list; None without, or for values that the engine refuses itself."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    try:
        return tuple(float(item) for item in items) or None
    except (TypeError, ValueError):
        return None


def as_text(shares: Sequence[float]) -> str:
    """Return shares of this proportion that add up to 1, as the job file has them."""
    total = sum(shares)
    rounded = [round(share / total, 4) for share in shares[:-1]]
    return ",".join(f"{share:.6g}" for share in (*rounded, 1 - sum(rounded)))


def data_sets(job: Job) -> int:
    """Return the number of data sets of the training."""
    return len([name for name in (job.training.dataset or "").split(",") if name.strip()])
