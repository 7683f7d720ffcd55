"""The values that transformers gives to keys that a config.json omits."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from backend.job.data_folder import data_folder

NODE_DEFAULTS = "config_defaults.json"
"""Of the types of the node's transformers."""
NEWER_DEFAULTS = "newer_config_defaults.json"
"""Of the types that only a later transformers has."""


@cache
def defaults() -> Mapping[str, Mapping[str, Any]]:
    """Return the values by model type (tools/config_defaults.py)."""
    values: dict[str, Mapping[str, Any]] = {}
    for name in (NEWER_DEFAULTS, NODE_DEFAULTS):
        values |= json.loads((data_folder("presets") / name).read_text(encoding="utf-8"))
    return values
