"""Read job files for the command line, with the named cluster and the model files that they name."""

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
"""UTF-8 with or without a byte order mark."""


def read_job(source: str, home: Path) -> tuple[Job, list[Problem]]:
    """Return the job in a file or standard input, with its warnings and notes.

    Raises ProblemsError if it has errors.
    """
    return resolve_job(read_mapping(source), home, base_folder(source))


def read_mapping(source: str) -> Mapping[str, Any]:
    """Return the mapping in a file or standard input, not validated. Raises ProblemsError if it is not a mapping."""
    mapping, problem = load_mapping(read_text(source))
    if problem:
        raise ProblemsError([problem])
    return mapping


def base_folder(source: str) -> Path:
    """Return the folder to which paths in a job file are relative."""
    return Path.cwd() if source == STDIN else Path(source).parent


def resolve_job(mapping: Mapping[str, Any], home: Path, folder: Path) -> tuple[Job, list[Problem]]:
    """Return the job of a mapping, with the content of the cluster and the files that it names, and its problems.

    `model.hf_config` may be the path of a file or of a model's folder, `model.profile` that of a file; both are
    relative to `folder`.
    """
    job, problems = parse_job(_with_model_files(with_cluster(mapping, home), folder))
    if job is None:
        raise ProblemsError(problems)
    return job, problems


def refuse_errors(problems: list[Problem]) -> None:
    """Raise ProblemsError if one of the problems is an error."""
    if errors(problems):
        raise ProblemsError(problems)


def read_text(source: str) -> str:
    """Return the text of a file or standard input. Raises ProblemsError if it cannot be read."""
    with open_text(source) as file:
        # One character more than the limit, so that the parser refuses a longer file. Standard input may be endless.
        text = file.read(MAXIMUM_TEXT + 1)
        text.encode()
        return text


def load_json(text: str) -> Any:
    """Return the value in JSON text.

    Raises JSONDecodeError, also for a number that is too large or nesting too deep.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(type(error).__name__, text, 0) from error
    level = [value]
    for _ in range(MAXIMUM_DEPTH + 1):
        level = [child for parent in level for child in _children(parent)]
    if level:
        raise json.JSONDecodeError(f"nested deeper than {MAXIMUM_DEPTH}", text, 0)
    return value


def read_json(path: Path) -> Any:
    """Return the value in a JSON file, which has the same size limit as a job file. Raises OSError or ValueError."""
    with path.open(encoding=_ENCODING) as file:
        text = file.read(MAXIMUM_TEXT + 1)
    if len(text) > MAXIMUM_TEXT:
        raise ValueError(f"more than {MAXIMUM_TEXT} characters")
    return load_json(text)


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


@contextmanager
def open_text(source: str) -> Iterator[IO[str]]:
    """Open a file or standard input as text. Bytes that are not UTF-8 become lone surrogates.

    Raises ProblemsError(file_unreadable), also when the caller encodes such a surrogate.
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
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the user of `~user` does not exist
        values = {"path": quoted(name), "reason": _reason(error)}
        raise ProblemsError([Problem(code="model_config_unreadable", field=field, values=values)]) from error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RuntimeError) else getattr(error, "strerror", None) or "not JSON"
