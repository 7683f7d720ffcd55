"""Families that transformers 5.6 does not have and a later release does, up to the one of requirements/newer.in.

`newer-python -m benchmarks.families --newer` compares the parameters of each with those that transformers builds.
"""

from collections.abc import Mapping

from backend.job.model.family import Family, qwen_sliding

NEWER: Mapping[str, Family] = {
    "mellum": Family(qk_norm="heads", layer_types=qwen_sliding),
}
"""By model_type of the text model, without the suffix `_text`."""
NEWER_TOWERS: tuple[str, ...] = ()
"""Types in vision.TOWERS that only a later transformers has."""
