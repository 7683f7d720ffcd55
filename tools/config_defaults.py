"""Write presets/config_defaults.json: the values that transformers gives to keys that a config.json omits.

    .venv-node/bin/python -m tools.config_defaults
    .venv-node/bin/newer-python -m tools.config_defaults --newer

Needs the node environment (transformers). Only keys that backend/job/model reads are kept. `--newer` writes
presets/newer_config_defaults.json instead: the same for types that only a later transformers has.
"""

import argparse
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from backend.job.data_folder import data_folder
from backend.job.model.defaults import NEWER_DEFAULTS, NODE_DEFAULTS
from backend.job.model.families import FAMILIES
from backend.job.model.newer import NEWER, NEWER_TOWERS
from backend.job.model.own_towers import OWN_TOWERS
from backend.job.model.vision import TOWERS

READERS = Path(__file__).parents[1] / "backend" / "job" / "model"
LEFT_OUT = {"model_type", "num_hidden_layers", "hidden_size"}
"""Keys that every config.json gives."""
TIED = "tie_word_embeddings"
MORE_TOWERS = ("gemma4_vision", "gemma4_audio", "clip_vision_model", "siglip_vision_model", "pixtral")
"""Towers that no model of the node's transformers has by default."""
MORE_NEWER_TOWERS = ("gemma4_unified_vision", "gemma4_unified_audio")
"""The same of a later transformers."""


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--newer", action="store_true")
    if parser.parse_args().newer:
        node = json.loads((data_folder("presets") / NODE_DEFAULTS).read_text())
        written = _defaults_of(NEWER, NEWER_TOWERS, MORE_NEWER_TOWERS)
        # A tower of the node's transformers keeps the values of that one.
        _write(NEWER_DEFAULTS, {name: values for name, values in written.items() if name not in node})
        return
    towers = [name for name in TOWERS if name not in {*NEWER_TOWERS, *OWN_TOWERS}]
    _write(NODE_DEFAULTS, _defaults_of({*FAMILIES} - {*NEWER}, towers, MORE_TOWERS))


def _defaults_of(
    families: Collection[str], towers: Collection[str], more: Collection[str]
) -> dict[str, dict[str, Any]]:
    keys = {key for path in READERS.glob("*.py") for key in re.findall(r'"([A-Za-z_0-9]+)"', path.read_text())}
    # transformers has no class for some families, whose config.json gives every key.
    defaults = {name: _defaults(name, keys - LEFT_OUT) for name in sorted(families) if name in CONFIG_MAPPING}
    for name in towers:
        model = AutoConfig.for_model(name)
        for part in ("vision_config", "audio_config"):
            tower = getattr(model, part, None)
            if tower is not None:
                defaults[tower.model_type] = _values(type(tower), keys - {"model_type"})
        text, whole = defaults.get(name, {}), _values(type(model), keys - LEFT_OUT)
        defaults[name] = text | whole
        # The language part alone has other values than the whole model.
        if f"{name}_text" in CONFIG_MAPPING and text.get(TIED, whole.get(TIED)) != whole.get(TIED):
            defaults[f"{name}_text"] = text
    for name in more:
        defaults[name] = _values(type(AutoConfig.for_model(name)), keys - {"model_type"})
    return defaults


def _write(name: str, defaults: dict[str, dict[str, Any]]) -> None:
    (data_folder("presets") / name).write_text(json.dumps(defaults, indent=1, sort_keys=True) + "\n")


def _defaults(name: str, keys: set[str]) -> dict[str, Any]:
    # Values of the class: an instance also has those that follow from others, such as one key head per head.
    return _values(type(AutoConfig.for_model(name).get_text_config()), keys)


def _values(config: type, keys: set[str]) -> dict[str, Any]:
    values = {key: getattr(config, key, None) for key in keys}
    return {key: value for key, value in values.items() if isinstance(value, bool | int | float | str | list | tuple)}


if __name__ == "__main__":
    main()
