"""Every single value of a job by its path, with its label and text. For comparisons of jobs."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from app.wizard.fields import label_of, table
from backend.job.batch import written
from backend.job.job import Job
from backend.job.mapping import parameters, to_mapping
from backend.job.parameters import Parameter


def leaves(job: Job) -> dict[str, Any]:
    """Return every single value by its path, in the order of the job file."""
    mapping = to_mapping(job)
    values = {path: _value_at(mapping, path, parameter) for path, parameter in parameters().items()}
    values |= job.unknown
    return dict(leaf for path, value in values.items() for leaf in _flat(path, value))


def _value_at(mapping: Any, path: str, parameter: Parameter) -> Any:
    """Return the value at a path of the job file, or the default."""
    for name in path.split("."):
        if not isinstance(mapping, Mapping) or name not in mapping:
            return list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        mapping = mapping[name]
    return mapping


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(f"{path}.{name}", item)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _flat(f"{path}[{number}]", item)
    elif value is not None:
        yield path, value


def label(path: str, lang: str) -> str:
    """Return the label of the parameter that contains the path. Empty for an unknown key."""
    bare = path.partition("[")[0]
    while bare and bare not in table():
        bare = bare.rpartition(".")[0]
    return label_of(lang, table()[bare]) if bare else ""


def text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, float):
        return written(value, 6)
    return json.dumps(value, ensure_ascii=False)
