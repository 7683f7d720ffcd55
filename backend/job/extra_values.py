"""Values of `extra`, which are passed to the engine as they are."""

import json
from collections.abc import Mapping
from typing import Any


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return a value that is a mapping, or its JSON text, as both engines accept it; empty if it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}
