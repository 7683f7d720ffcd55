"""Job files as the command line takes them: a path or `-`, a named cluster, a model's config.json beside it."""

import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from app.home import with_cluster
from backend.job.job import Job
from backend.job.mapping import MAXIMUM_TEXT, load_mapping, parse_job
from backend.job.problems import Problem, ProblemsError, errors, quoted
from backend.job.safe_yaml import MAXIMUM_DEPTH

STDIN = "-"
_ENCODING = "utf-8-sig"
"""With or without the mark that some editors put in front."""


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
    """The job of a mapping. Relative to `folder`, `model.hf_config` may be the path of a file or of a model's folder,
    and `model.profile` the path of a file.
    """
    job, problems = parse_job(_with_model_files(with_cluster(mapping, home), folder))
    if job is None:
        raise ProblemsError(problems)
    return job, problems


def refuse_errors(problems: list[Problem]) -> None:
    """Raises ProblemsError when one of the problems stops the user."""
    if errors(problems):
        raise ProblemsError(problems)


def read_text(source: str) -> str:
    """What a file or standard input holds; ProblemsError when it cannot be read."""
    with open_text(source) as file:
        # One letter more than a job file may have: what comes behind, perhaps without an end, is not read.
        text = file.read(MAXIMUM_TEXT + 1)
        text.encode()
        return text


def load_json(text: str) -> Any:
    """What JSON text holds, nested no deeper than YAML may be; JSONDecodeError, also for too large a number."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(type(error).__name__, text, 0) from error
    level = [value]
    for _ in range(MAXIMUM_DEPTH + 1):
        level = [inner for one in level for inner in _inner(one)]
    if level:
        raise json.JSONDecodeError(f"nested deeper than {MAXIMUM_DEPTH}", text, 0)
    return value


def read_json(path: Path) -> Any:
    """What a JSON file holds that a job names, no longer than a job file may be; OSError, ValueError."""
    with path.open(encoding=_ENCODING) as file:
        text = file.read(MAXIMUM_TEXT + 1)
    if len(text) > MAXIMUM_TEXT:
        raise ValueError(f"more than {MAXIMUM_TEXT} characters")
    return load_json(text)


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


@contextmanager
def open_text(source: str) -> Iterator[IO[str]]:
    """A file or standard input as text, bytes that are no UTF-8 as lone surrogates; ProblemsError for what goes wrong.

    A surrogate that reaches an encoder inside is told in the same way.
    """
    try:
        if source != STDIN:
            with open(source, encoding=_ENCODING, errors="surrogateescape") as file:
                yield file
        elif sys.stdin is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        else:
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(encoding=_ENCODING, errors="surrogateescape")
            yield sys.stdin
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ProblemsError([Problem(code="file_unreadable", values={"path": source, "reason": reason})]) from error


def _with_model_files(mapping: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the job's mapping with the contents of the files that `model` names."""
    model = mapping.get("model")
    if not isinstance(model, Mapping):
        return mapping
    names = {key: model[key] for key in ("hf_config", "profile") if isinstance(model.get(key), str)}
    contents = {key: _json_file(name, folder, f"model.{key}") for key, name in names.items()}
    return {**mapping, "model": {**model, **contents}} if contents else mapping


def _json_file(name: str, folder: Path, field: str) -> Any:
    try:
        path = folder / Path(name).expanduser()
        return read_json(path / "config.json" if path.is_dir() else path)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: `~name` of a user that is not there
        values = {"path": quoted(name), "reason": _reason(error)}
        raise ProblemsError([Problem(code="model_config_unreadable", field=field, values=values)]) from error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RuntimeError) else getattr(error, "strerror", None) or "not JSON"
