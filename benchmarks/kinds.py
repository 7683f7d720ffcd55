"""Kinds of runs that have an interval of their own."""

from benchmarks.errors import Result
from benchmarks.timed_run import Timed

MEMORY_KINDS = ("megatron", "megatron_lora", "hugging_face", "hugging_face_lora", "hugging_face_qlora")
"""A name without a method is full training."""
TIME_KINDS = ("megatron", "hugging_face", "hugging_face_lora")
"""Times of LoRA and QLoRA have one interval. Times of Megatron have one, because few rows are of LoRA."""


def kind_of(result: Result) -> str:
    """Return the kind of a run with a peak, as in MEMORY_KINDS."""
    method = next((name for name in ("_qlora", "_lora") if name[1:] in result.case), "")
    if result.family != "hugging_face":
        return f"megatron{method.replace('_qlora', '_lora')}"
    return f"hugging_face{method}"


def lengths_of(result: Result) -> str:
    """Return what is known of the lengths of a row's samples, as in backend.estimate.interval.LENGTHS."""
    return "unknown" if result.unknown_lengths else "fixed"


def kind_of_time(row: Timed) -> str:
    """Return the kind of a timed run, as in TIME_KINDS."""
    if row.time_context.run.megatron:
        return "megatron"
    return "hugging_face_lora" if row.adapters else "hugging_face"
