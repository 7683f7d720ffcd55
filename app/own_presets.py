"""The user's own presets: whole jobs kept by name, a file each in the home folder, which only this user can read.

They are job files: what is exported here can be planned, launched and imported anywhere else.
"""

import os
import re
import secrets
import unicodedata
from pathlib import Path

from backend.engines import check_engine
from backend.job.job import Job
from backend.job.mapping import MAXIMUM_TEXT
from backend.job.problems import Problem, ProblemsError, quoted

_FOLDER = "presets"
_ENDING = ".yaml"
_NAME = re.compile(r"[\w-]([\w. -]{0,62}[\w-])?")
"""Letters of any script, digits, `_`, `-`, and inside a name blanks and dots."""


def own_presets(home: Path) -> list[str]:
    """The names there are, sorted."""
    found = (path.name.removesuffix(_ENDING) for path in (home / _FOLDER).glob(f"*{_ENDING}"))
    return sorted(name for name in found if _NAME.fullmatch(name))


def read_preset(home: Path, name: str) -> str:
    """The job file of a preset; ProblemsError(bad_preset_name, unknown_preset)."""
    path = _path(home, name)
    try:
        # One letter more than a job file may have: a reader then refuses it instead of half of it.
        with path.open(encoding="utf-8") as file:
            return file.read(MAXIMUM_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemsError([Problem(code="unknown_preset", values={"name": name})]) from error


def keep_preset(home: Path, name: str, text: str, *, replace: bool = False) -> None:
    """Keep a job file as a preset, whole or not at all.

    Raises ProblemsError: bad_preset_name; preset_exists, unless it may be replaced; preset_not_written.
    """
    path = _path(home, name)
    try:
        fresh = _written(path.parent, text)
        try:
            _place(fresh, path, replace=replace)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        values = {"path": str(path), "reason": error.strerror}
        raise ProblemsError([Problem(code="preset_not_written", values=values)]) from error


def refuse_secrets(job: Job) -> None:
    """ProblemsError for what looks like a secret in a job: a preset is a file, and is handed on."""
    found = [problem for problem in check_engine(job) if problem.code in ("extra_secret", "environment_secret")]
    if found:
        raise ProblemsError(found)


def delete_preset(home: Path, name: str) -> None:
    """Forget a preset; ProblemsError(bad_preset_name, unknown_preset)."""
    try:
        _path(home, name).unlink()
    except OSError as error:
        raise ProblemsError([Problem(code="unknown_preset", values={"name": name})]) from error


def _written(folder: Path, text: str) -> Path:
    """The text in a new private file of the folder."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = folder / f".{secrets.token_hex(8)}"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return fresh


def _place(fresh: Path, path: Path, *, replace: bool) -> None:
    if replace:
        fresh.replace(path)
        return
    try:
        # Unlike a rename, a link never takes the place of what is there.
        path.hardlink_to(fresh)
    except FileExistsError as error:
        raise ProblemsError([Problem(code="preset_exists", values={"name": path.stem})]) from error


def _path(home: Path, name: str) -> Path:
    # One name, however its accents are composed.
    name = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(name):
        raise ProblemsError([Problem(code="bad_preset_name", values={"name": quoted(name)})])
    return home / _FOLDER / f"{name}{_ENDING}"
