"""Job files as the command line takes them: a path or `-`, a named cluster, a model's config.json beside it."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.home import with_cluster
from backend.job.job import Job
from backend.job.mapping import load_mapping, parse_job
from backend.job.problems import Problem, ProblemsError, errors

STDIN = "-"


def read_job(source: str, home: Path) -> tuple[Job, list[Problem]]:
    """The job in a file or standard input, with its warnings and notes; ProblemsError when it has errors."""
    return job_of(read_mapping(source), home, folder_of(source))


def read_mapping(source: str) -> Mapping[str, Any]:
    """What a file or standard input says, not looked at yet; ProblemsError when it is no mapping."""
    mapping, problem = load_mapping(read_text(source))
    if problem:
        raise ProblemsError([problem])
    return mapping


def folder_of(source: str) -> Path:
    """Where paths in a job file start from."""
    return Path.cwd() if source == STDIN else Path(source).parent


def job_of(mapping: Mapping[str, Any], home: Path, folder: Path) -> tuple[Job, list[Problem]]:
    """The job of a mapping; `model.hf_config` may be a path, of a file or a model's folder, relative to `folder`."""
    job, problems = parse_job(_with_model_config(with_cluster(mapping, home), folder))
    if job is None:
        raise ProblemsError(problems)
    return job, problems


def refuse_errors(problems: list[Problem]) -> None:
    """Raises ProblemsError when one of the problems stops the user."""
    if errors(problems):
        raise ProblemsError(problems)


def read_text(source: str) -> str:
    """What a file or standard input holds; ProblemsError when it cannot be read."""
    try:
        return sys.stdin.read() if source == STDIN else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        values = {"path": source, "reason": reason}
        raise ProblemsError([Problem(code="file_unreadable", values=values)]) from error


def _with_model_config(mapping: dict[str, Any], folder: Path) -> dict[str, Any]:
    model = mapping.get("model")
    given = model.get("hf_config") if isinstance(model, Mapping) else None
    if not isinstance(given, str):
        return mapping
    try:
        path = folder / Path(given).expanduser()
        config = json.loads((path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: `~name` of a user that is not there
        values = {"path": given, "reason": _reason(error)}
        problem = Problem(code="model_config_unreadable", field="model.hf_config", values=values)
        raise ProblemsError([problem]) from error
    return {**mapping, "model": {**model, "hf_config": config}}


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RuntimeError) else getattr(error, "strerror", None) or "not JSON"
