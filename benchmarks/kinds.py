"""Kinds of runs that have an interval of their own."""

from benchmarks.errors import Result
from benchmarks.timed_run import Timed

MEMORY_KINDS = ("megatron", "hugging_face", "hugging_face_lora", "hugging_face_qlora")
"""`hugging_face` is full training. Megatron has too few rows of LoRA."""
TIME_KINDS = MEMORY_KINDS[:3]
"""Times of LoRA and QLoRA have one interval."""


def kind_of(result: Result) -> str:
    """Return the kind of a run with a peak, as in MEMORY_KINDS."""
    if result.family != "hugging_face":
        return "megatron"
    method = next((name for name in ("_qlora", "_lora") if name[1:] in result.case), "")
    return f"hugging_face{method}"


def lengths_of(result: Result) -> str:
    """Return what is known of the lengths of a row's samples, as in backend.estimate.interval.LENGTHS."""
    return "unknown" if result.unknown_lengths else "fixed"


def kind_of_time(row: Timed) -> str:
    """Return the kind of a timed run, as in TIME_KINDS."""
    if row.time_context.run.megatron:
        return "megatron"
    return "hugging_face_lora" if row.adapters else "hugging_face"
