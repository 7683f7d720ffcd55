"""What an edit means for keys that speak of others: whence the samples are known, what batch the rate is for, the
template of a model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.wizard.draft_state import job_of
from app.wizard.fields import look_up
from backend.job.launch_rules import needs_template
from backend.job.presets import models

_COUNTED = ("training.samples", "training.dataset", "training.dataset_dir")
_RATE, _BATCH, _SOURCE = "training.learning_rate", "training.learning_rate_batch", "training.samples_from"
_PRESET, _TEMPLATE = "model.preset", "training.template"


def no_longer_read(draft: Mapping[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
    """The edit that forgets where the samples were counted, once their number or the data is another."""
    is_other = any(path in edits and edits[path] != look_up(draft, path) for path in _COUNTED)
    return {_SOURCE: None} if is_other and _SOURCE not in edits and look_up(draft, _SOURCE) else {}


def template_of_preset(draft: Mapping[str, Any], edits: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """Return the edit that sets the template of a preset that is chosen. A template that the user chose stays."""
    if _PRESET not in edits or _TEMPLATE in edits or "training" in edits:
        return {}
    before, chosen = (models().get(str(key)) for key in (look_up(draft, _PRESET), edits[_PRESET]))
    if chosen is None or look_up(draft, _TEMPLATE) not in (None, "", before and before.template):
        return {}
    job, _ = job_of(draft, home)
    return {_TEMPLATE: chosen.template} if job is None or needs_template(job) else {}


def chosen_for(
    before: Mapping[str, Any], after: Mapping[str, Any], edits: Mapping[str, Any], home: Path
) -> dict[str, Any]:
    """The edit that notes which global batch the learning rate is for: the one at hand when it was typed.

    A rate that was there before is for the batch before the first change, be it to sizes that allow none; a default
    that nobody chose is for none while machines are being described.
    """
    if _BATCH in edits or "training" in edits or not any(_may_change_batch(path) for path in edits):
        return {}
    now = _global_batch(after, home)
    if _RATE in edits:
        return {_BATCH: now} if now and now != look_up(after, _BATCH) else {}
    if look_up(before, _BATCH) or (
        look_up(before, _RATE) is None and all(path.startswith("cluster") for path in edits)
    ):
        return {}
    then = _global_batch(before, home)
    return {_BATCH: then} if then and then != now else {}


def _may_change_batch(path: str) -> bool:
    return path.partition(".")[0] in ("cluster", "training", "parallel", "engine")


def _global_batch(draft: Mapping[str, Any], home: Path) -> int | None:
    job, _ = job_of(draft, home)
    return job.global_batch or None if job else None
