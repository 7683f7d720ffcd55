"""The user's own presets: whole jobs kept by name, a file each in the home folder, which only this user can read.

They are job files: what is exported here can be planned, launched and imported anywhere else.
"""

import re
import unicodedata
from pathlib import Path

from app.private_file import write_atomically
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
        write_atomically(path, text, replace=replace)
    except FileExistsError as error:
        raise ProblemsError([Problem(code="preset_exists", values={"name": path.stem})]) from error
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


def _path(home: Path, name: str) -> Path:
    # One name, however its accents are composed.
    name = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(name):
        raise ProblemsError([Problem(code="bad_preset_name", values={"name": quoted(name)})])
    return home / _FOLDER / f"{name}{_ENDING}"
