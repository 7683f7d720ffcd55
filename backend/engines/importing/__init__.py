"""Import of a LLaMA-Factory configuration as a job file, with a report on every key.

The engines' own tables (Engine.owned) say which key carries which value of the job. presets/engine_keys.yaml has the
types and defaults of keys. readers.py inverts the renderers. The job file's own parser checks each value. A missing key
gets the engine's default, not that of a new job.
"""

from collections.abc import Mapping
from typing import Any

from backend.engines.importing.choose import ReadJson, choose_engine, refuse_other_work
from backend.engines.importing.reading import RENAMED, Reading
from backend.engines.importing.report import Imported, ImportLine
from backend.engines.known_keys import intended_value, keys_of

__all__ = ["ASSUMED", "ImportLine", "Imported", "import_llamafactory", "is_llamafactory"]

ASSUMED: Mapping[str, Any] = {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8}
"""Placeholder for the machines, which no configuration names."""

_LONGEST_SIDE = 8192


def is_llamafactory(mapping: Mapping[str, Any]) -> bool:
    """Return whether a mapping is a LLaMA-Factory configuration rather than a job file."""
    return "cluster" not in mapping and "version" not in mapping


def import_llamafactory(
    config: Mapping[str, Any], cluster: Mapping[str, Any], read_json: ReadJson = lambda path: None
) -> Imported:
    """Return the job that the configuration describes, on the machines of `cluster`.

    `read_json` opens the DeepSpeed settings that it names, and the config.json of a model that is no preset. Raises
    ProblemsError if the configuration trains nothing, if no engine can train it, or if the cluster is wrong.
    """
    config = {str(key): value for key, value in config.items()}
    values = {RENAMED.get(key, key): _current_value(key, value) for key, value in config.items()}
    refuse_other_work(values)
    choice = choose_engine(values, read_json)
    keys = keys_of(choice.engine)
    reading = Reading(
        choice,
        {key: intended_value(value, keys[key]) if key in keys else value for key, value in values.items()},
        cluster,
    )
    for key in config:
        reading.take(key)
    reading.find_shape(read_json)
    reading.correct()
    reading.fill_in()
    reading.correct()
    return Imported(mapping=reading.mapping(), lines=tuple(reading.lines.values()))


def _current_value(key: str, value: Any) -> Any:
    """Return the value in the form of today's versions.

    LLaMA-Factory 0.9.0 took an image resolution as the length of a side, 0.9.1 takes it as the number of pixels.
    """
    is_side = key.endswith("_resolution") and isinstance(value, int) and value < _LONGEST_SIDE
    return value * value if is_side else value
