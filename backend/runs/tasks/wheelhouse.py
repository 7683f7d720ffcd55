"""Downloads the packages of a set into a folder, for nodes that reach no package index.

pip of a temporary environment downloads, with the hashes of the lock, files for this machine's processor and libc. What
a source package needs to be built goes into the folder too, because the nodes build without an index.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from backend.cluster.node import tail
from backend.job.environment_sets import EnvironmentSet, choose_set, environment_sets
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.node.installer.build import reaches
from backend.runs.redact import redact
from backend.runs.tasks.environment_install import own_uv

DEFAULT_BUILD = ("setuptools", "wheel")
"""What a source package without `[build-system]` is built with (https://peps.python.org/pep-0517/)."""

NOT_WRITTEN = re.compile(r"\[Errno (?:13|28|30|122)\]")
"""What pip prints when a disk is full or read-only, a quota is used up, or a folder belongs to another user."""

ReportLine = Callable[[str], object]
"""Called with every line that pip prints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheelhouse:
    """A complete folder of packages."""

    name: str
    """The set."""
    python: str
    """The version of Python that the packages are for."""
    files: int
    size: int
    """In bytes."""


def download(
    job: Job,
    folder: Path,
    report: ReportLine,
    python: str | None = None,
    sets: Mapping[str, EnvironmentSet] | None = None,
) -> Wheelhouse:
    """Download the set of the job for a version of Python.

    Raises ProblemsError. Another call goes on with what is there.
    """
    if sys.platform != "linux":
        raise ProblemsError([Problem(code="wheels_not_linux", values={"system": sys.platform})])
    chosen = choose_set(job, [], environment_sets() if sets is None else sets)
    version = python or chosen.pythons[0]
    if version not in chosen.pythons:
        values = {"value": version, "choices": ", ".join(chosen.pythons)}
        raise ProblemsError([Problem(code="not_a_choice", field="--python", values=values)])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="megaboard-wheels-") as work:
        pip = [_make_environment(Path(work) / "environment", version, report), "-m", "pip", "download"]
        pip += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(folder)]
        pip += ["--index-url", job.cluster.install.index_url] if job.cluster.install.index_url else []
        environment = {**os.environ, **chosen.variables}
        for number, step in enumerate(chosen.steps):
            lock = Path(work) / f"{number}.txt"
            lock.write_text(step.text(), encoding="utf-8")
            options = ["--require-hashes"] if step.hashes else []
            options += ["--extra-index-url", step.index] if step.index and reaches(step.index) else []
            _download([*pip, "--no-deps", *options, "-r", str(lock)], folder, environment, report)
        if needed := needed_to_build(folder):
            _download([*pip, "--only-binary", ":all:", *sorted(needed)], folder, environment, report)
    files = [path for path in folder.iterdir() if path.is_file()]
    return Wheelhouse(
        name=chosen.name, python=version, files=len(files), size=sum(path.stat().st_size for path in files)
    )


def needed_to_build(folder: Path) -> set[str]:
    """Return the requirements that the source packages of a folder name for their build."""
    needed: set[str] = set()
    for path in folder.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            member = next((m for m in archive if m.isfile() and m.name.count("/") == 1
                           and m.name.endswith("/pyproject.toml")), None)  # fmt: skip
            file = archive.extractfile(member) if member else None
            settings = tomllib.loads(file.read().decode()) if file else {}
        needed |= {*DEFAULT_BUILD, *settings.get("build-system", {}).get("requires", ())}
    return needed


def _make_environment(folder: Path, version: str, report: ReportLine) -> str:
    """Make an environment with pip, and return its interpreter. Raises ProblemsError: wheels_failed."""
    uv = own_uv()
    if uv is not None:
        command = [str(uv), "venv", "--quiet", "--no-project", "--seed", "--python", version, str(folder)]
    else:
        command = [f"python{version}", "-m", "venv", str(folder)]
    if (lines := _run(command, os.environ, report)) is not None:
        raise _failure("--python", "python", lines=lines, version=version)
    return str(folder / "bin" / "python")


def _download(command: list[str], folder: Path, environment: Mapping[str, str], report: ReportLine) -> None:
    """Run `pip download`. Raises ProblemsError: wheels_failed, with the index or the folder as its field."""
    lines = _run(command, environment, report)
    if lines is None:
        return
    if NOT_WRITTEN.search(lines):
        raise _failure("--out", "folder", lines=lines, folder=folder)
    raise _failure("cluster.install.index_url", "index", lines=lines)


def _run(command: list[str], environment: Mapping[str, str], report: ReportLine) -> str | None:
    """Run a command. Return the end of its output if it fails, else None."""
    said: list[str] = []
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                said = [*said[-9:], line]
                report(line.rstrip())
    except FileNotFoundError as error:
        return f"{command[0]}: {error.strerror}"
    return tail("".join(said)) if process.returncode else None


def _failure(field: str, case: str, *, lines: str, **values: object) -> ProblemsError:
    values = {"case": case, "lines": redact(lines), **values}
    return ProblemsError([Problem(code="wheels_failed", field=field, values=values)])
