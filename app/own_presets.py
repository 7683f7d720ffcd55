"""The user's own presets: jobs saved by name, one file each in the home folder, readable by this user only.

A preset is a job file, so it can be planned and launched anywhere else.
"""

import re
import unicodedata
from pathlib import Path

from app.private_file import write_atomically
from backend.engines import check_engine
from backend.job.job import Job
from backend.job.job_secrets import SECRET_CODES
from backend.job.mapping import MAXIMUM_TEXT
from backend.job.problems import Problem, ProblemsError, quoted

_FOLDER = "presets"
_ENDING = ".yaml"
_NAME = re.compile(r"[\w-]([\w. -]{0,62}[\w-])?")
"""Letters of any script, digits, `_` and `-`. Spaces and dots are allowed inside a name."""


def own_presets(home: Path) -> list[str]:
    """Return the sorted names of the presets."""
    names = (path.name.removesuffix(_ENDING) for path in (home / _FOLDER).glob(f"*{_ENDING}"))
    return sorted(name for name in names if _NAME.fullmatch(name))


def read_preset(home: Path, name: str) -> str:
    """Return the job file of a preset. ProblemsError(bad_preset_name, unknown_preset)."""
    path = _path(home, name)
    try:
        # One character more than the limit, so that the parser refuses a file that is too long.
        with path.open(encoding="utf-8") as file:
            return file.read(MAXIMUM_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemsError([Problem(code="unknown_preset", values={"name": name})]) from error


def save_preset(home: Path, name: str, text: str, *, replace: bool = False) -> None:
    """Save a job file as a preset, atomically.

    Raises ProblemsError: bad_preset_name, preset_not_written, and preset_exists unless `replace`.
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
    """Raise ProblemsError if a value of the job looks like a secret: users share preset files."""
    secrets = [problem for problem in check_engine(job) if problem.code in SECRET_CODES]
    if secrets:
        raise ProblemsError(secrets)


def delete_preset(home: Path, name: str) -> None:
    """Delete a preset. ProblemsError(bad_preset_name, unknown_preset)."""
    try:
        _path(home, name).unlink()
    except OSError as error:
        raise ProblemsError([Problem(code="unknown_preset", values={"name": name})]) from error


def _path(home: Path, name: str) -> Path:
    # A letter with an accent may be one code point or two.
    name = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(name):
        raise ProblemsError([Problem(code="bad_preset_name", values={"name": quoted(name)})])
    return home / _FOLDER / f"{name}{_ENDING}"
