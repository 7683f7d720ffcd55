"""Rows of the data sets as the model sees them, their lengths and their faults, for the page."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.text import t
from backend.cluster.program_answers.data import DataFault, DataPreview, DataSetRead
from backend.job.job import Job

BARS = 30
"""Bars of the histogram of lengths."""
FULL_PACKS = 20
"""Packed sequences from which their fill is measured. Fewer count as full."""


def shown(answer: DataPreview, job: Job, lang: str) -> dict[str, Any]:
    """Return what static/wizard/data_preview.js draws."""
    return {
        "datasets": [_dataset(read, lang) for read in answer.get("datasets", [])],
        "lengths": _lengths(answer, job),
        "examples": answer.get("examples", []),
    }


def mean_tokens(answer: DataPreview) -> int | None:
    """Return the mean length of a sequence before it is cut; None if no row could be encoded."""
    lengths = answer.get("lengths", [])
    return max(1, round(sum(lengths) / len(lengths))) if lengths else None


def has_faults(answer: DataPreview) -> bool:
    """Return whether a data set has a row that the engine cannot use."""
    return any(read["faults"] for read in answer.get("datasets", []))


def _dataset(read: DataSetRead, lang: str) -> dict[str, Any]:
    pairs = read["duplicate_rows"]
    return {
        "name": read["name"],
        "rows": read["rows"],
        "read": read["read"] if read["is_cut"] else None,
        "encoded": read["encoded"],
        "columns": read["columns"],
        "faults": [shown_fault(fault, lang) for fault in read["faults"]],
        "duplicates": read["duplicates"],
        "duplicate_rows": t(lang, "wizard.data.list").join(f"{first} = {second}" for first, second in pairs[:8]),
    }


def shown_fault(fault: DataFault, lang: str) -> dict[str, Any]:
    """Return a fault in words, with its rows and the fix."""
    code = fault["code"]
    rows = [f"{number} ({example})" if example else str(number) for number, example in fault["rows"] if number]
    more = fault["count"] > len(fault["rows"])
    return {
        "code": code,
        "words": t(lang, f"wizard.data.fault.{code}", detail=fault["detail"], count=f"{fault['count']:,}"),
        "fix": t(lang, f"wizard.data.fault.{code}.fix", detail=fault["detail"]),
        "rows": t(lang, "wizard.data.list").join(rows) + (" …" if more and rows else ""),
    }


def _lengths(answer: DataPreview, job: Job) -> dict[str, Any] | None:
    """Return the histogram, and the shares that are cut, padded, trained and saved by packing."""
    lengths = np.array(answer.get("lengths", []), dtype=np.int64)
    if not len(lengths):
        return None
    # mcore_adapter encodes one token more and cuts it off.
    cutoff = job.training.cutoff_len
    kept = np.minimum(lengths, cutoff)
    counts, edges = np.histogram(lengths, bins=BARS, range=(0, int(lengths.max()) + 1))
    padded = _padded_tokens(kept, job.training.micro_batch_size)
    packs = answer.get("packs", 0)
    # The last pack of a small sample is nearly empty, which says nothing about a whole data set.
    packed = packs * cutoff if packs >= FULL_PACKS else int(kept.sum())
    return {
        "sequences": len(lengths),
        "bars": [[int(low), int(high), int(count)] for low, high, count in zip(edges, edges[1:], counts, strict=False)],
        "cutoff": cutoff,
        "mean": float(lengths.mean()),
        "median": float(np.median(lengths)),
        "longest": int(lengths.max()),
        "cut_share": float((lengths > cutoff).mean()),
        "lost_share": float(1 - kept.sum() / lengths.sum()),
        "trained_share": sum(answer.get("trained", [])) / max(1, int(lengths.sum())),
        "micro_batch": job.training.micro_batch_size,
        "padded_share": float(1 - kept.sum() / padded),
        "packing_saves": float(1 - packed / padded) if job.training.stage == "sft" else None,
        "is_packed": job.training.packing,
    }


def _padded_tokens(lengths: NDArray[np.int64], micro_batch: int) -> int:
    """Return the tokens of the sequences in micro-batches that are padded to their longest."""
    groups = np.array_split(lengths, range(micro_batch, len(lengths), micro_batch))
    return sum(int(group.max()) * len(group) for group in groups)


def edits(answer: DataPreview) -> Mapping[str, Any]:
    """Return the edit of the job that takes the measured mean length over."""
    mean = mean_tokens(answer)
    return {} if mean is None else {"training.sample_tokens": mean}
