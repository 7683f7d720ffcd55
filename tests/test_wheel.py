"""An installed Megaboard has the data of a checkout: presets, static files and catalogues are in the wheel."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from app.demo.node_environment import LOCKS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="the build back end hatchling is missing: pip install --group dev")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True, timeout=300
    )
    (path,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(path).namelist())


@pytest.mark.parametrize(
    ("folder", "inside"),
    [
        ("presets", "backend/data/presets"),
        ("static", "backend/data/static"),
        ("app", "app"),
        ("backend", "backend"),
    ],
)
def test_every_file_of_a_folder_is_in_the_wheel(wheel, folder, inside):
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert files
    assert {f"{inside}/{path.relative_to(ROOT / folder).as_posix()}" for path in files} <= wheel


def test_the_locks_of_the_demo_s_nodes_are_in_the_wheel(wheel):
    assert {f"backend/data/requirements/{name}" for name in LOCKS} <= wheel


def test_tests_and_environments_stay_out_of_the_wheel(wheel):
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == {"app", "backend"}


def test_the_container_is_built_from_all_that_the_wheel_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"], *build["packages"]}
    needed |= {path.split("/")[0] for path in build["force-include"]}
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == needed
