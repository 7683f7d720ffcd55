"""Edits of keys that depend on other keys: source of the sample count, batch of the learning rate, chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.wizard.draft_state import job_of
from app.wizard.fields import look_up
from backend.job.launch_rules import needs_template
from backend.job.presets import models

_COUNTED = (
    "training.samples", "training.dataset", "training.dataset_dir",
    "training.mix_strategy", "training.interleave_probs",
)  # fmt: skip
_RATE, _BATCH, _SOURCE = "training.learning_rate", "training.learning_rate_batch", "training.samples_from"
_PRESET, _TEMPLATE = "model.preset", "training.template"


def samples_source_edit(draft: Mapping[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the edit that clears the source of the sample count if the count or the data changes."""
    has_changed = any(path in edits and edits[path] != look_up(draft, path) for path in _COUNTED)
    return {_SOURCE: None} if has_changed and _SOURCE not in edits and look_up(draft, _SOURCE) else {}


def template_edit(draft: Mapping[str, Any], edits: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """Return the edit that sets the template of a preset that is chosen. A template that the user chose stays."""
    if _PRESET not in edits or _TEMPLATE in edits or "training" in edits:
        return {}
    before, chosen = (models().get(str(key)) for key in (look_up(draft, _PRESET), edits[_PRESET]))
    if chosen is None or look_up(draft, _TEMPLATE) not in (None, "", before and before.template):
        return {}
    job, _ = job_of(draft, home)
    return {_TEMPLATE: chosen.template} if job is None or needs_template(job) else {}


def learning_rate_batch_edit(
    before: Mapping[str, Any], after: Mapping[str, Any], edits: Mapping[str, Any], home: Path
) -> dict[str, Any]:
    """Return the edit that records the global batch for which the user chose the learning rate.

    For a rate in `edits` this is the batch after the edit. For an earlier rate it is the batch before its first change.
    An edit of the cluster alone records no batch for a default rate.
    """
    if _BATCH in edits or "training" in edits or not any(_may_change_batch(path) for path in edits):
        return {}
    batch_after = _global_batch(after, home)
    if _RATE in edits:
        return {_BATCH: batch_after} if batch_after and batch_after != look_up(after, _BATCH) else {}
    if look_up(before, _BATCH) or (
        look_up(before, _RATE) is None and all(path.startswith("cluster") for path in edits)
    ):
        return {}
    batch_before = _global_batch(before, home)
    return {_BATCH: batch_before} if batch_before and batch_before != batch_after else {}


def _may_change_batch(path: str) -> bool:
    return path.partition(".")[0] in ("cluster", "training", "parallel", "engine")


def _global_batch(draft: Mapping[str, Any], home: Path) -> int | None:
    job, _ = job_of(draft, home)
    return job.global_batch or None if job else None
