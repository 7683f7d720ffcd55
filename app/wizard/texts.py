"""Parses the draft's texts, such as hosts, variables or a config.json, into values of the job file."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from app.wizard.hosts import from_form
from app.wizard.scheduler import read_scheduler
from backend.job.mapping import dump_mapping, load_mapping
from backend.job.problems import Problem, ProblemsError


def read_texts(draft: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the draft with every typed text parsed. A text that cannot be parsed is left out and reported."""
    mapping = dict(draft)
    problems: list[Problem] = []
    for path, (reader, _) in TEXTS.items():
        owner, name = owner_of(mapping, path)
        if owner is None or not isinstance(owner.get(name), str):
            continue
        try:
            owner[name] = reader(owner[name])
        except ProblemsError as error:
            problems += error.problems
            del owner[name]
    cluster = mapping.get("cluster")
    if isinstance(cluster, Mapping):
        mapping["cluster"] = _read_cluster(cluster, problems)
    return mapping, problems


def text_of(path: str, value: Any) -> str:
    """Return the text of a value for the text box of `path`."""
    if isinstance(value, str) or value is None:
        return value or ""
    # Users write cluster files by hand. A value of the wrong type is shown unchanged, so that the user can correct it.
    is_writable = isinstance(value, list | tuple if path == "cluster.port_range" else Mapping)
    return TEXTS[path][1](value) if is_writable else str(value)


def owner_of(mapping: dict[str, Any], path: str) -> tuple[dict[str, Any] | None, str]:
    """Return the mapping that holds the last name of a path, with copied parents. None if there is none."""
    *parents, last = path.split(".")
    for name in parents:
        if not isinstance(mapping.get(name), Mapping):
            return None, last
        mapping[name] = dict(mapping[name])
        mapping = mapping[name]
    return mapping, last


def read_pairs(text: str) -> dict[str, str]:
    """Return `NAME=value` lines as a mapping. Raises ProblemsError."""
    pairs = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.strip().partition("=")
        if not line.strip():
            continue
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise _error("bad_environment_line", "environment", line=number, text=line.strip())
        pairs[name] = value
    return pairs


def _read_cluster(cluster: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    cluster = dict(cluster)
    read_scheduler(cluster, problems)
    if isinstance(cluster.get("hosts"), Mapping):
        cluster["hosts"], host_problems = from_form(cluster["hosts"])
        problems += host_problems
    environments = cluster.get("environments")
    if isinstance(environments, Mapping):
        environments = {name: _without_empty_container(value) for name, value in environments.items()}
        is_set = {name: any(value.values()) if isinstance(value, Mapping) else True
                    for name, value in environments.items()}  # fmt: skip
        cluster["environments"] = {name: value for name, value in environments.items() if is_set[name]}
    return cluster


def _without_empty_container(environment: Any) -> Any:
    """Return an environment without a container that has no image: the form always has a runtime."""
    if not isinstance(environment, Mapping) or not isinstance(environment.get("container"), Mapping):
        return environment
    container = {name: value for name, value in environment["container"].items() if value is not None}
    others = {name: value for name, value in environment.items() if name != "container"}
    return {**others, "container": container} if container.get("image") else others


def _read_json(text: str) -> Mapping[str, Any]:
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise _error("not_json", "model.hf_config", line=line, reason=getattr(error, "msg", str(error))) from error
    if not isinstance(value, dict):
        raise _error("not_json", "model.hf_config", line=1, reason="{ expected")
    return value


def _read_yaml(text: str) -> Mapping[str, Any]:
    if not text.strip():
        return {}
    mapping, problem = load_mapping(text)
    if problem:
        raise ProblemsError([Problem(code=problem.code, field="extra", values=problem.values)])
    return mapping


def _read_ports(text: str) -> list[int]:
    numbers = re.findall(r"\d+", text)
    if len(numbers) != 2 or not re.fullmatch(r"\s*\d+\s*[-–,\s]\s*\d+\s*", text):
        raise _error("bad_port_range", "cluster.port_range")
    return [int(number) for number in numbers]


def _write_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) if value else ""


def _write_yaml(value: Any) -> str:
    return dump_mapping(value) if value else ""


def _write_pairs(value: Any) -> str:
    return "\n".join(f"{name}={item}" for name, item in value.items())


def _write_ports(value: Any) -> str:
    return "-".join(str(port) for port in value)


TEXTS: Mapping[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "model.hf_config": (_read_json, _write_json),
    "environment": (read_pairs, _write_pairs),
    "extra": (_read_yaml, _write_yaml),
    "cluster.port_range": (_read_ports, _write_ports),
}
"""Job path -> (text to value, value to text) of the keys that people write as text."""


def _error(code: str, field: str, **values: object) -> ProblemsError:
    return ProblemsError([Problem(code=code, field=field, values=values)])
