"""Sets of packages at locked versions that `megaboard install` puts on nodes (presets/environments.yaml)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any

import yaml

from backend.job.data_folder import data_folder
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError

_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==.*(?:\n[ \t]+.*)*\n?", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockStep:
    """One call of the installer: the packages of a lock file, or some of them."""

    lock: str
    """File in requirements/."""
    hashes: bool = True
    """Whether every package must have one of the lock's hashes."""
    from_source: bool = False
    """Build in the environment itself: the packages import torch to be built."""
    index: str | None = None
    """An index in addition to PyPI."""
    only: str | None = None
    skip: str | None = None

    def text(self) -> str:
        """Return the pins of this step, as a lock file."""
        text = (data_folder("requirements") / self.lock).read_text(encoding="utf-8")
        pins = list(_PIN.finditer(text))
        return "".join(
            match[0] for match in pins if match[1] != self.skip and (self.only is None or match[1] == self.only)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSet:
    """Packages of one engine for one kind of device."""

    name: str
    engine: str
    """Key of cluster.environments."""
    pythons: tuple[str, ...]
    """Versions of Python, the preferred one first."""
    steps: tuple[LockStep, ...]
    imports: str
    """Python statement that must run afterwards."""
    disk_gib: float
    """Space of the environment and of the downloads."""
    cuda: str | None = None
    """CUDA version of torch's build; None for CPU."""
    remove: tuple[str, ...] = ()
    """Patterns of files in the environment that are removed."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the installation."""
    sources: tuple[str, ...] = ()
    tried: str = ""

    @property
    def digest(self) -> str:
        """Return a digest of everything that decides what the environment contains."""
        parts = [step.text() for step in self.steps]
        return sha256(repr((parts, self.steps, self.remove, self.imports)).encode()).hexdigest()[:12]

    def folder(self, python: str) -> str:
        """Return the name of the environment's folder for a version of Python."""
        return f"{self.name}-py{python}-{self.digest}"


@cache
def environment_sets() -> Mapping[str, EnvironmentSet]:
    """Return the shipped sets by name."""
    listed = yaml.safe_load((data_folder("presets") / "environments.yaml").read_text(encoding="utf-8"))
    return {name: _read(name, entry) for name, entry in listed.items()}


def choose_set(job: Job, cuda: Sequence[str | None], sets: Mapping[str, EnvironmentSet]) -> EnvironmentSet:
    """Return the set that the job names, or the newest one for its engine that all drivers support.

    `cuda` has the newest CUDA version of each node's driver, None without a driver. Raises ProblemsError:
    no_environment_set.
    """
    path, named = "cluster.install.environment", job.cluster.install.environment
    engine = job.traits.environment
    fitting = [entry for entry in sets.values() if entry.engine == engine]
    values = {"engine": engine, "names": ", ".join(entry.name for entry in fitting)}
    if named:
        if named not in {entry.name for entry in fitting}:
            raise ProblemsError([Problem(code="unknown_environment_set", field=path, values={**values, "name": named})])
        return sets[named]
    if job.traits.is_megatron:
        raise ProblemsError([Problem(code="no_megatron_set", field=path, values=values)])
    drivers = [_numbers(version) for version in cuda if version]
    if job.cluster.gpu == "cpu":
        usable = [entry for entry in fitting if entry.cuda is None]
    else:
        # A driver runs every build of its major version (https://docs.nvidia.com/deploy/cuda-compatibility/).
        usable = [
            entry for entry in fitting if entry.cuda and all(_numbers(entry.cuda)[0] <= driver[0] for driver in drivers)
        ]
    if not usable:
        shown = ", ".join(sorted({version for version in cuda if version})) or "CPU"
        raise ProblemsError([Problem(code="no_environment_set", field=path, values={**values, "device": shown})])
    return max(usable, key=lambda entry: _numbers(entry.cuda or "0"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _read(name: str, entry: Mapping[str, Any]) -> EnvironmentSet:
    lists = {key: tuple(entry[key]) for key in ("pythons", "remove", "sources") if key in entry}
    steps = tuple(LockStep(**step) for step in entry["steps"])
    return EnvironmentSet(**{**entry, **lists, "name": name, "steps": steps})
