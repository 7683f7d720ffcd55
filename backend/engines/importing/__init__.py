"""Import of a configuration of LLaMA-Factory or ms-swift as a job file, with a report on every key.

source.py says what a file is: YAML, or a shell script with a training command. The engines' own tables (Engine.owned)
say which key carries which value of the job. presets/engine_keys.yaml has the types and defaults of keys. readers.py
and swift.py invert the renderers. The job file's own parser checks each value. A missing key gets the engine's default,
not that of a new job.
"""

from collections.abc import Collection, Mapping
from typing import Any

from backend.engines.importing.choose import Choice, ReadFile, choose_engine, refuse_other_work
from backend.engines.importing.dialect import LLAMAFACTORY, Dialect
from backend.engines.importing.reading import Reading
from backend.engines.importing.report import Imported, ImportLine
from backend.engines.importing.source import ImportedFile, is_job, is_megatron_of_swift, read_source
from backend.engines.importing.swift import SWIFT, refuse_other_swift, swift_values
from backend.engines.importing.swift_trainer import SWIFT_TRAINER, refuse_other_trainers, trainer_choice
from backend.engines.known_keys import intended_value, keys_of
from backend.job.problems import Problem, ProblemsError

__all__ = [
    "ASSUMED",
    "ImportLine",
    "Imported",
    "ImportedFile",
    "import_llamafactory",
    "import_source",
    "is_job",
    "read_source",
]

ASSUMED: Mapping[str, Any] = {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8}
"""Placeholder for the machines, which no configuration names."""

_LONGEST_SIDE = 8192


def import_source(source: ImportedFile, cluster: Mapping[str, Any], read_file: ReadFile | None = None) -> Imported:
    """Return the job that a configuration describes, on the machines of `cluster`.

    `read_file` opens the files that it names. Raises ProblemsError if it is a job file, if it trains nothing, if no
    engine can train it, or if the cluster is wrong.
    """
    if source.kind == "job":
        raise ProblemsError([Problem(code="import_is_job")])
    if source.kind == "llamafactory":
        return import_llamafactory(source.config, cluster, read_file, source.open_keys)
    verb = source.command.partition(" ")[2]
    read = import_swift_megatron if is_megatron_of_swift(source) else import_swift_trainer
    return read(source.config, verb, cluster, read_file, source.open_keys)


def import_llamafactory(
    config: Mapping[str, Any],
    cluster: Mapping[str, Any],
    read_file: ReadFile | None = None,
    open_keys: Collection[str] = (),
) -> Imported:
    """Return the job that a LLaMA-Factory configuration describes. Raises ProblemsError as `import_source`.

    `read_file` opens the DeepSpeed settings that it names, and the config.json of a model that is no preset.
    """
    config = {str(key): value for key, value in config.items()}
    values = {LLAMAFACTORY.renamed.get(key, key): _current_value(key, value) for key, value in config.items()}
    refuse_other_work(values)
    known = {key: value for key, value in values.items() if key not in open_keys}
    return _imported(config, values, choose_engine(known, read_file), cluster, LLAMAFACTORY, read_file, open_keys)


def import_swift_megatron(
    config: Mapping[str, Any],
    verb: str,
    cluster: Mapping[str, Any],
    read_file: ReadFile | None = None,
    open_keys: Collection[str] = (),
) -> Imported:
    """Return the job of ms-swift's `megatron VERB`; an empty verb is found from the keys. Raises ProblemsError."""
    values = {SWIFT.renamed.get(key, key): value for key, value in config.items()}
    refuse_other_swift(values, verb)
    choice = Choice(engine="swift-megatron", values=swift_values(values, verb))
    return _imported(config, values, choice, cluster, SWIFT, read_file, open_keys)


def import_swift_trainer(
    config: Mapping[str, Any],
    verb: str,
    cluster: Mapping[str, Any],
    read_file: ReadFile | None = None,
    open_keys: Collection[str] = (),
) -> Imported:
    """Return the job of ms-swift's `swift VERB`; an empty verb is found from the keys. Raises ProblemsError."""
    values = {SWIFT_TRAINER.renamed.get(key, key): value for key, value in config.items()}
    refuse_other_trainers(values, verb)
    known = {key: value for key, value in values.items() if key not in open_keys}
    choice = trainer_choice(known, verb, read_file)
    return _imported(config, values, choice, cluster, SWIFT_TRAINER, read_file, open_keys)


def _imported(
    config: Mapping[str, Any],
    values: Mapping[str, Any],
    choice: Choice,
    cluster: Mapping[str, Any],
    dialect: Dialect,
    read_file: ReadFile | None,
    open_keys: Collection[str],
) -> Imported:
    """Return the job and the report. `values` are those of `config` under the current names of the keys.

    `open_keys` are keys whose values the file does not tell, because they depend on variables outside of it.
    """
    keys = keys_of(choice.engine)
    meant = {key: intended_value(value, keys[key]) if key in keys else value for key, value in values.items()}
    reading = Reading(choice, meant, cluster, dialect, open_keys)
    for key in config:
        reading.take(key)
    reading.find_shape(read_file)
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
