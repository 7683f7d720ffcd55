"""Everything that `make` installs is in lock files with hashes, and they agree with the versions chosen by hand."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PIN = re.compile(
    r"^([A-Za-z0-9._-]+(?:\[[^\]]*\])?==\S+)(?: ; [^\\\n]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE
)
PAGE = PROJECT["project"]["dependencies"]
DEV = PROJECT["dependency-groups"]["dev"]


def pins(lock: str) -> dict[str, list[str]]:
    """Return package -> its locked versions. There are several if they differ by Python version."""
    result: dict[str, list[str]] = {}
    for pin, hashes in PIN.findall((REQUIREMENTS / lock).read_text(encoding="utf-8")):
        assert hashes, f"{lock}: {pin} has no hash"
        requirement = Requirement(pin)
        result.setdefault(canonicalize_name(requirement.name), []).append(str(requirement.specifier).removeprefix("=="))
    return result


@pytest.mark.parametrize("lock", ["page.txt", "dev.txt", "node.txt", "node-no-deps.txt", "engines.txt", "swift.txt"])
def test_every_line_of_a_lock_is_a_pin_with_its_hashes(lock: str) -> None:
    text = (REQUIREMENTS / lock).read_text(encoding="utf-8")
    remainder = PIN.sub("", text)
    assert [line for line in remainder.splitlines() if line and not line.startswith("#")] == []
    assert pins(lock)


@pytest.mark.parametrize(("lock", "asked"), [("page.txt", PAGE), ("dev.txt", PAGE + DEV)])
def test_the_lock_holds_what_pyproject_asks_for(lock: str, asked: list[str]) -> None:
    locked = pins(lock)
    wrong = []
    for requirement in map(Requirement, asked):
        versions = locked.get(canonicalize_name(requirement.name), [])
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            wrong.append(f"{requirement} is locked as {versions}: run `make lock`")
    assert wrong == []


def test_tests_run_with_the_versions_that_the_page_is_installed_with() -> None:
    dev = pins("dev.txt")
    assert {name: dev.get(name) for name in pins("page.txt")} == pins("page.txt")


@pytest.mark.parametrize("name", sorted(path.stem for path in REQUIREMENTS.glob("*.in")))
def test_a_lock_of_a_node_holds_the_versions_that_were_chosen_by_hand(name: str) -> None:
    lines = (REQUIREMENTS / f"{name}.in").read_text(encoding="utf-8").splitlines()
    chosen = [Requirement(line) for line in lines if line and not line.startswith("#")]
    request = {
        canonicalize_name(requirement.name): [str(requirement.specifier).removeprefix("==")] for requirement in chosen
    }
    assert pins(f"{name}.txt") == request


def test_pip_accepts_the_python_versions_that_are_tested_and_no_other() -> None:
    project = PROJECT["project"]
    accepted = [f"3.{minor}" for minor in range(8, 20) if f"3.{minor}.5" in SpecifierSet(project["requires-python"])]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert accepted == named
    assert f"Python {', '.join(named[:-1])} or {named[-1]}." in readme
