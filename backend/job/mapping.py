"""Reading and writing of the job file: YAML text <-> mapping <-> Job, lossless. Every problem names its field.

job, problems = load_job(text)  # job is None if `problems` has an error
text = dump_job(job)
"""

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from backend.job.job import Job
from backend.job.parameters import Parameter, describe, split_optional
from backend.job.patterns import bad_format
from backend.job.problems import Problem, errors, quoted
from backend.job.safe_yaml import load_yaml

MAXIMUM_TEXT = 262_144
"""Limit on the characters of a job file; a longer text is refused before YAML reads it."""

_WRITABLE = r"(?s)[^\ud800-\udfff]*"
"""Pattern of a text that UTF-8 can hold. JSON, unlike YAML, may contain half of a surrogate pair."""


@cache
def parameters() -> Mapping[str, Parameter]:
    """Return every leaf key of the job file by its dotted path, in the order of the file."""
    return {item.path: item for item in describe(Job) if item.path != "unknown"}


def load_job(text: str) -> tuple[Job | None, list[Problem]]:
    """Return a Job from YAML text, and its problems."""
    mapping, problem = load_mapping(text)
    return (None, [problem]) if problem else parse_job(mapping)


def load_mapping(text: str) -> tuple[Mapping[str, Any], Problem | None]:
    """Return the mapping in YAML text, or a Problem."""
    if len(text) > MAXIMUM_TEXT:
        return {}, Problem(code="file_too_large", values={"limit": MAXIMUM_TEXT})
    loaded, problem = load_yaml(text)
    if problem:
        return {}, problem
    if not isinstance(loaded, Mapping):
        return {}, Problem(code="not_a_mapping")
    return loaded, None


def parse_job(mapping: Mapping[str, Any]) -> tuple[Job | None, list[Problem]]:
    """Return a Job from a mapping, and its problems. The Job is None if there is an error.

    Unknown keys are kept and reported.
    """
    problems: list[Problem] = []
    unknown: dict[str, Any] = {}
    if isinstance(mapping.get("cluster"), str):
        return None, [Problem(code="unknown_cluster", field="cluster", values={"name": quoted(mapping["cluster"])})]
    job = _parse_dataclass(Job, mapping, "", problems, unknown)
    if job is None or errors(problems):
        return None, problems
    return dataclasses.replace(job, unknown=unknown), problems


def to_mapping(job: Job) -> dict[str, Any]:
    """Return the job as plain YAML data: required keys, values that differ from their default, and unknown keys."""
    mapping: dict[str, Any] = _plain(job)
    for path, value in job.unknown.items():
        owner, key = _walk(mapping, path)
        owner[key] = value
    return mapping


def dump_job(job: Job) -> str:
    """Return the job as YAML text that load_job reads back equal."""
    return dump_mapping(to_mapping(job))


def dump_mapping(mapping: Mapping[str, Any]) -> str:
    """Return YAML in the order of the keys; letters of any script stay as they are."""
    return yaml.dump(
        dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120
    )


class _Dumper(yaml.SafeDumper):
    """YAML dumper without loss: PyYAML writes U+0085 unchanged, and reads it back as a blank."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\x85" in text else None)


_Dumper.add_representer(str, _represent_text)


def get_value(job: Job, path: str) -> Any:
    """Return the value at a dotted path, such as `parallel.tensor`; None inside a group that the job leaves out."""
    value: Any = job
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def with_values(job: Job, values: Mapping[str, Any]) -> Job:
    """Return the job with other values at dotted paths. The values are not checked."""
    for path, value in values.items():
        job = _with_value(job, path.split("."), value)
    return job


def _with_value(owner: Any, names: list[str], value: Any) -> Any:
    name, *inner = names
    return dataclasses.replace(owner, **{name: _with_value(getattr(owner, name), inner, value) if inner else value})


def _walk(mapping: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *parents, key = path.split(".")
    for name in parents:
        mapping = mapping.setdefault(name, {})
    return mapping, key


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        mapping = {}
        for item in dataclasses.fields(value):
            current = getattr(value, item.name)
            if item.metadata.get("hidden") or (current == _default(item) and item.name != "version"):
                continue
            mapping[item.name] = _plain(current)
        return mapping
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _default(item: "dataclasses.Field[Any]") -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


@cache
def _hints(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _parse_dataclass(
    owner: type, mapping: Any, prefix: str, problems: list[Problem], unknown: dict[str, Any] | None
) -> Any:
    """Return an `owner` from a mapping; None if a required key is missing or the value is no mapping.

    `unknown` collects unknown keys by path. Inside lists there is no path to keep them at, so they are refused there.
    """
    if not isinstance(mapping, Mapping):
        problems.append(_wrong_type(prefix.rstrip("."), mapping, "mapping"))
        return None
    values: dict[str, Any] = {}
    complete = True
    fields = {item.name: item for item in dataclasses.fields(owner) if not item.metadata.get("hidden")}
    for name, item in fields.items():
        if name not in mapping:
            if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                problems.append(Problem(code="missing_key", field=prefix + name))
                complete = False
            continue
        earlier_problems = len(problems)
        value = _parse_value(_hints(owner)[name], mapping[name], prefix + name, item.metadata, problems, unknown)
        if not errors(problems[earlier_problems:]):
            values[name] = value
        else:
            complete = False
    for name in (key for key in mapping if key not in fields):
        _report_unknown(str(name), mapping[name], prefix, list(fields), problems, unknown)
    return owner(**values) if complete else None


def _report_unknown(
    name: str, value: Any, prefix: str, names: list[str], problems: list[Problem], unknown: dict[str, Any] | None
) -> None:
    if "." in name:
        # `unknown` uses dotted paths: the key would be written as another key, perhaps as a known one.
        problems.append(Problem(code="dotted_key", field=prefix + name, values={"key": name}))
        return
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    code = "unknown_key_near" if similar else "unknown_key"
    severity: typing.Literal["error", "warning"] = "error" if unknown is None else "warning"
    values = {"key": name, "near": similar[0]} if similar else {"key": name}
    problems.append(Problem(code=code, field=prefix + name, severity=severity, values=values))
    if unknown is not None:
        unknown[prefix + name] = value


def _parse_value(
    hint: Any,
    value: Any,
    path: str,
    limits: Mapping[str, Any],
    problems: list[Problem],
    unknown: dict[str, Any] | None,
) -> Any:
    hint, optional = split_optional(hint)
    if value is None and optional:
        return None
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _parse_dataclass(typing.cast(type, hint), value, f"{path}.", problems, unknown)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            problems.append(_wrong_type(path, value, "list"))
            return None
        inner = typing.get_args(hint)[0]
        return tuple(_parse_value(inner, item, f"{path}[{i}]", limits, problems, None) for i, item in enumerate(value))
    if origin is not None and origin is not typing.Literal and isinstance(origin, type) and issubclass(origin, Mapping):
        return _parse_table(typing.get_args(hint)[1], value, path, limits, problems)
    return _parse_scalar(hint, value, path, limits, problems)


def _parse_table(inner: Any, value: Any, path: str, limits: Mapping[str, Any], problems: list[Problem]) -> Any:
    """Return a mapping with free keys, such as `environment` or `cluster.environments`."""
    if not isinstance(value, Mapping):
        problems.append(_wrong_type(path, value, "mapping"))
        return None
    for key, item in value.items():
        texts = texts_in({key: item if inner is Any else None})
        if unwritable := next((text for text in texts if not re.fullmatch(_WRITABLE, text)), None):
            problems.append(bad_format(f"{path}.{key}", unwritable, _WRITABLE))
    if inner is Any:
        return dict(value)
    return {str(key): _parse_value(inner, item, f"{path}.{key}", limits, problems, None) for key, item in value.items()}


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in plain data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


def _parse_scalar(hint: Any, value: Any, path: str, limits: Mapping[str, Any], problems: list[Problem]) -> Any:
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            problems.append(
                Problem(code="not_a_choice", field=path, values={"value": quoted(value), "choices": ", ".join(choices)})
            )
        return value
    converted = _convert(hint, value)
    if converted is None:
        problems.append(_wrong_type(path, value, "str_or_mapping" if typing.get_origin(hint) else hint.__name__))
        return None
    problem = _out_of_range(converted, path, limits)
    if problem:
        problems.append(problem)
    return converted


def _convert(hint: Any, value: Any) -> Any:
    """Return `value` as the hinted type; None if it is not one. `2e-5` is a string to PyYAML and a number to people."""
    if hint is bool:
        return value if isinstance(value, bool) else None
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value in (1e400, -1e400):
            return None
        return int(value) if int(value) == value else None
    if hint is float:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return None
        finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e308
        return float(value) if finite else None
    if hint is str:
        if isinstance(value, bool | list | dict) or value is None:
            return None
        return str(value)
    return value if isinstance(value, str | Mapping) else None


def _wrong_type(path: str, value: Any, expected: str) -> Problem:
    return Problem(code="wrong_type", field=path, values={"expected": expected, "value": quoted(value)})


def _out_of_range(value: Any, path: str, limits: Mapping[str, Any]) -> Problem | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high, above = limits.get("minimum"), limits.get("maximum"), limits.get("above")
        if low is not None and value < low:
            return Problem(code="too_small", field=path, values={"value": value, "limit": low}, edit={path: low})
        if above is not None and value <= above:
            return Problem(code="not_above", field=path, values={"value": value, "limit": above})
        if high is not None and value > high:
            return Problem(code="too_large", field=path, values={"value": value, "limit": high}, edit={path: high})
    if isinstance(value, str) and (pattern := limits.get("pattern")) and not re.fullmatch(pattern, value):
        return bad_format(path, value, pattern)
    return None
