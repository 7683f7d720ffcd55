"""Write presets/config_defaults.json: the values that transformers gives to keys that a config.json omits.

    .venv-node/bin/python -m tools.config_defaults

Needs the node environment (transformers). Only keys that backend/job/model reads are kept.
"""

import json
import re
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from backend.job.data_folder import data_folder
from backend.job.model.families import FAMILIES
from backend.job.model.vision import TOWERS

READERS = Path(__file__).parents[1] / "backend" / "job" / "model"
LEFT_OUT = {"model_type", "num_hidden_layers", "hidden_size"}
"""Keys that every config.json gives."""


def main() -> None:
    """Write the file."""
    keys = {key for path in READERS.glob("*.py") for key in re.findall(r'"([a-z_0-9]+)"', path.read_text())}
    defaults = {name: _defaults(name, keys - LEFT_OUT) for name in sorted(FAMILIES)}
    for name in TOWERS:
        model = AutoConfig.for_model(name)
        vision = model.vision_config
        defaults[vision.model_type] = _values(type(vision), keys - {"model_type"})
        defaults[name] = defaults.get(name, {}) | _values(type(model), keys - LEFT_OUT)
    path = data_folder("presets") / "config_defaults.json"
    path.write_text(json.dumps(defaults, indent=1, sort_keys=True) + "\n")


def _defaults(name: str, keys: set[str]) -> dict[str, Any]:
    # Values of the class: an instance also has those that follow from others, such as one key head per head.
    return _values(type(AutoConfig.for_model(name).get_text_config()), keys)


def _values(config: type, keys: set[str]) -> dict[str, Any]:
    values = {key: getattr(config, key, None) for key in keys}
    return {key: value for key, value in values.items() if isinstance(value, bool | int | float | str | list | tuple)}


if __name__ == "__main__":
    main()
