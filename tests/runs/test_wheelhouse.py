"""A folder of packages for nodes without internet: filled from the real index, and used by real sshd nodes."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.main import main
from app.text import LANGUAGES, render_problem
from backend.job.cluster import Install
from backend.job.environment_sets import EnvironmentSet
from backend.job.job import Job
from backend.job.mapping import dump_job, with_values
from backend.job.problems import ProblemsError
from backend.runs.controller import Controller
from backend.runs.tasks import wheelhouse
from tests.full_disk import full_disk
from tests.tiny_environment import tiny_environment

pytestmark = [pytest.mark.contract, pytest.mark.slow]

WHEEL = """\
six==1.17.0 \\
    --hash=sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274
"""
SOURCE = """\
docopt==0.6.2 \\
    --hash=sha256:49b3a825280bd66b3aa83585ef59c4a8c82f2c8a522dbe754a8bc8d08c85c491
"""


@pytest.fixture
def tiny(tmp_path: Path) -> EnvironmentSet:
    """Return a set of a wheel and of a package that PyPI has only as source."""
    return tiny_environment(tmp_path, WHEEL + SOURCE, "six, docopt")


@pytest.fixture
def bare(job: Job) -> Job:
    return with_values(job, {"cluster.environments": {}})


def filled(job: Job, folder: Path, tiny: EnvironmentSet) -> list[str]:
    """Fill the folder, and return the names of its files. Skip the test if the index does not answer."""
    lines: list[str] = []
    try:
        wheelhouse.download(job, folder, lines.append, sets={tiny.name: tiny})
    except ProblemsError:
        if any("NewConnectionError" in line for line in lines):
            pytest.skip("PyPI does not answer")
        raise
    return [path.name for path in folder.iterdir()]


def test_nodes_install_from_the_folder_alone_and_build_what_has_only_source(
    controller: Controller, bare: Job, tiny: EnvironmentSet, tmp_path: Path
) -> None:
    names = filled(bare, tmp_path / "wheels", tiny)
    assert {name.partition("-")[0] for name in names} >= {"six", "docopt", "setuptools", "wheel"}
    install = Install(find_links=str(tmp_path / "wheels"), offline=True)
    job = with_values(bare, {"cluster.install": install})
    installed = controller.tasks.install(job, lambda done, total, lines: None, {tiny.name: tiny})
    assert Path(installed.python).is_file()


def test_a_package_with_another_hash_is_refused_and_is_not_in_the_folder(
    bare: Job, tiny: EnvironmentSet, tmp_path: Path
) -> None:
    (tmp_path / "lock.txt").write_text(WHEEL.replace("4721", "0000"))
    folder = tmp_path / "wheels"
    with pytest.raises(ProblemsError) as raised:
        filled(bare, folder, tiny)
    (problem,) = raised.value.problems
    assert (problem.code, problem.field) == ("wheels_failed", "cluster.install.index_url")
    assert "six" in str(problem.values["lines"])
    assert list(folder.iterdir()) == []
    assert all(render_problem(lang, problem)["fix"] for lang in LANGUAGES)


def test_a_full_disk_is_the_fault_of_the_folder(bare: Job, tiny: EnvironmentSet, tmp_path: Path) -> None:
    with full_disk(tmp_path / "wheels") as disk:
        disk.fill()
        with pytest.raises(ProblemsError) as raised:
            filled(bare, disk.folder, tiny)
    (problem,) = raised.value.problems
    assert (problem.code, problem.field) == ("wheels_failed", "--out")
    assert all(str(disk.folder) in render_problem(lang, problem)["fix"] for lang in LANGUAGES)


def test_a_python_that_cannot_be_found_is_the_fault_of_its_version(
    bare: Job, tiny: EnvironmentSet, tmp_path: Path
) -> None:
    sets = {tiny.name: replace(tiny, pythons=("3.99",))}
    with pytest.raises(ProblemsError) as raised:
        wheelhouse.download(bare, tmp_path / "wheels", lambda line: None, "3.99", sets)
    (problem,) = raised.value.problems
    assert (problem.code, problem.field) == ("wheels_failed", "--python")
    assert "3.99" in str(problem.values["lines"])
    assert all("3.99" in render_problem(lang, problem)["fix"] for lang in LANGUAGES)


def test_a_version_of_python_that_the_set_lacks_is_refused(bare: Job, tiny: EnvironmentSet, tmp_path: Path) -> None:
    with pytest.raises(ProblemsError) as raised:
        wheelhouse.download(bare, tmp_path / "wheels", lambda line: None, "3.9", {tiny.name: tiny})
    assert [(problem.code, problem.field) for problem in raised.value.problems] == [("not_a_choice", "--python")]


def test_the_command_line_fills_the_folder_and_says_what_to_do_with_it(
    home: Path,
    bare: Job,
    tiny: EnvironmentSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(home))
    monkeypatch.setattr(wheelhouse, "environment_sets", lambda: {tiny.name: tiny})
    (tmp_path / "lock.txt").write_text(WHEEL)
    filled(bare, tmp_path / "wheels", tiny)
    (tmp_path / "job.yaml").write_text(dump_job(bare))
    assert main(["wheels", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "wheels")]) == 0
    shown = capsys.readouterr().out
    assert str(tmp_path / "wheels") in shown
    assert "cluster.install.find_links" in shown
