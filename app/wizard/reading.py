"""From the draft to a Job: what was typed is kept in the draft as it is, and read here, with what is wrong with it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.home import with_cluster
from app.wizard.hosts import from_form
from backend.engines import check_engine
from backend.estimate.estimate import Estimate, estimate_resolved
from backend.job.job import Job
from backend.job.launch_rules import check_launch
from backend.job.mapping import dump_mapping, load_mapping, parse_job
from backend.job.model import ModelShape
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check_resolved


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What the draft says at one moment."""

    job: Job | None
    """None while an error stands in the way of reading it."""
    shape: ModelShape | None
    gpu: Gpu | None
    estimate: Estimate | None
    """None while the job is not sound, or where its memory is not modelled."""
    problems: tuple[Problem, ...]
    """What is wrong with the plan."""
    missing: tuple[Problem, ...]
    """What a launch needs beyond the plan."""

    @property
    def is_sound(self) -> bool:
        """Whether there is a job without an error, so that figures mean something."""
        return self.job is not None and not errors(self.problems)

    @property
    def can_launch(self) -> bool:
        """Whether nothing but the nodes' own answers stands before a launch."""
        return self.is_sound and not errors(self.missing)


def read(draft: Mapping[str, Any], home: Path) -> Reading:
    """The draft as a job, with everything that is wrong with it."""
    try:
        mapping, problems = read_texts(with_cluster(draft, home))
    except ProblemsError as error:
        return Reading(job=None, shape=None, gpu=None, estimate=None, problems=error.problems, missing=())
    job, found = parse_job(mapping)
    problems += found
    if job is None:
        return Reading(job=None, shape=None, gpu=None, estimate=None, problems=tuple(problems), missing=())
    gpu, shape = _try(lambda: resolve_gpu(job.cluster), problems), _try(lambda: resolve_model(job.model), problems)
    figures = None
    if gpu and shape:
        problems += [*check_resolved(job, shape, gpu), *check_engine(job)]
        if not errors(problems):
            figures = _try(lambda: estimate_resolved(job, shape, gpu), problems)
        if figures and not figures.fits:
            problems.append(_over_memory(figures))
    missing = tuple(check_launch(job))
    return Reading(job=job, shape=shape, gpu=gpu, estimate=figures, problems=tuple(problems), missing=missing)


def read_texts(draft: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The draft with every typed text replaced by what it says; a text that says nothing is left out and reported."""
    mapping = dict(draft)
    problems: list[Problem] = []
    for path, (reader, _) in TEXTS.items():
        owner, name = _owner(mapping, path)
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
    """What the text box of `path` shows."""
    if isinstance(value, str) or value is None:
        return value or ""
    return TEXTS[path][1](value)


def read_pairs(text: str) -> dict[str, str]:
    """`NAME=value` lines as a mapping; raises ProblemsError."""
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
    if isinstance(cluster.get("hosts"), Mapping):
        cluster["hosts"], found = from_form(cluster["hosts"])
        problems += found
    environments = cluster.get("environments")
    if isinstance(environments, Mapping):
        is_named = {name: any(value.values()) if isinstance(value, Mapping) else True
                    for name, value in environments.items()}  # fmt: skip
        cluster["environments"] = {name: value for name, value in environments.items() if is_named[name]}
    return cluster


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


def _owner(mapping: dict[str, Any], path: str) -> tuple[dict[str, Any] | None, str]:
    """The mapping that holds the last name of a path, copied on the way down; None when it is not there."""
    *parents, last = path.split(".")
    for name in parents:
        if not isinstance(mapping.get(name), Mapping):
            return None, last
        mapping[name] = dict(mapping[name])
        mapping = mapping[name]
    return mapping, last


def _over_memory(figures: Estimate) -> Problem:
    values = {"needed_gib": round(figures.reserved_gib + figures.outside_gib, 1), "stage": figures.peak_stage,
              "memory_gib": round(figures.gpu_memory_gib, 1)}  # fmt: skip
    return Problem(code="over_memory", field="parallel", severity="warning", values=values)


def _try(resolve: Callable[[], Any], problems: list[Problem]) -> Any:
    try:
        return resolve()
    except ProblemsError as error:
        problems += error.problems
        return None


def _error(code: str, field: str, **values: object) -> ProblemsError:
    return ProblemsError([Problem(code=code, field=field, values=values)])
