"""The values that transformers gives to keys that a config.json omits."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from backend.job.data_folder import data_folder


@cache
def defaults() -> Mapping[str, Mapping[str, Any]]:
    """Return the values by model type (presets/config_defaults.json)."""
    path = data_folder("presets") / "config_defaults.json"
    values: Mapping[str, Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return values
