"""Installation of an environment on real sshd nodes, with uv and a set of two small packages that the test makes.

The two nodes see one disk, as those of the demo do.
"""

import base64
import hashlib
import json
import os
import signal
import subprocess
import threading
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from app.main import main
from app.text import LANGUAGES, render_problem
from backend.cluster.node_programs import INSTALLER
from backend.job.cluster import Environment, Install
from backend.job.environment_sets import EnvironmentSet
from backend.job.job import Job
from backend.job.mapping import dump_job, load_job, with_values
from backend.job.problems import ProblemsError
from backend.runs.controller import Controller
from backend.runs.tasks import environment_install, one_off_task
from backend.runs.tasks.environment_install import with_python
from tests.full_disk import full_disk
from tests.nodes import signal_sessions
from tests.tiny_environment import tiny_environment
from tests.waiting import wait_for

pytestmark = [pytest.mark.contract, pytest.mark.slow]

PYTHON_FIELD = "cluster.install.python_download"
PACKAGES = ("first-part", "second_part")


def wheel(folder: Path, name: str, more: str = "") -> str:
    """Write a small wheel, and return the line of its lock."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    texts = {
        f"{module}.py": f"VALUE = 1\n{more}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{_digest(text)},{len(text)}\n" for path, text in texts.items()) + f"{info}/RECORD,,\n"
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in {**texts, f"{info}/RECORD": record}.items():
            archive.writestr(inner, text)
    return f"{name}==1.0 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _digest(text: str) -> str:
    """Return the hash as RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


@pytest.fixture
def tiny(tmp_path: Path) -> EnvironmentSet:
    """Return a set of two packages, whose wheels are in `wheels` of the test's folder."""
    (tmp_path / "wheels").mkdir()
    lock = "".join(wheel(tmp_path / "wheels", name) for name in PACKAGES)
    return tiny_environment(tmp_path, lock, "first_part, second_part", f"tiny-{tmp_path.name}"[:60])


@pytest.fixture
def bare(job: Job, tmp_path: Path) -> Job:
    """Return a job without an environment on its nodes, whose packages come from the wheels of the test alone."""
    install = Install(find_links=str(tmp_path / "wheels"), offline=True)
    return with_values(job, {"cluster.environments": {}, "cluster.install": install})


def quiet(done: int, total: int, lines: object) -> None:
    """Ignore the progress."""


def environments(job: Job) -> list[Path]:
    root = Path(job.cluster.run_root, environment_install.FOLDER)
    return [path for path in root.glob("tiny-*") if path.is_dir()]


def failure(controller: Controller, job: Job, tiny: EnvironmentSet) -> list[tuple[str, str | None]]:
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.install(job, quiet, {tiny.name: tiny})
    for problem in raised.value.problems:
        assert (problem.field or "").startswith("cluster."), problem
        assert all(render_problem(lang, problem)["fix"] for lang in LANGUAGES)
    return [(problem.code, problem.node) for problem in raised.value.problems]


def marker_of(folder: Path) -> dict[str, str]:
    content: dict[str, str] = json.loads((folder / ".megaboard-environment.json").read_text())
    return content


def test_an_environment_is_made_and_found_again(controller: Controller, bare: Job, tiny: EnvironmentSet) -> None:
    progress: list[tuple[int, int]] = []
    installed = controller.tasks.install(
        bare, lambda done, total, lines: progress.append((done, total)), {tiny.name: tiny}
    )
    assert installed.problems == ()
    assert installed.edit == {"cluster.environments.llamafactory.python": installed.python}
    assert progress[-1][0] == progress[-1][1] > 0
    command = [installed.python, "-c", "import first_part; print(first_part.VALUE)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
    folder = Path(installed.python).parents[1]
    made = marker_of(folder)
    assert made["state"] == "ready"
    again = controller.tasks.install(bare, quiet, {tiny.name: tiny})
    assert (again.python, marker_of(folder)) == (installed.python, made)
    ready = with_python(bare, installed)
    assert ready.cluster.environments["llamafactory"].python == installed.python
    left = [path for path in Path(bare.cluster.run_root).iterdir() if "-install-" in path.name]
    assert left == []


def test_a_wheel_with_a_wrong_hash_is_named_and_gives_no_environment(
    controller: Controller, bare: Job, tiny: EnvironmentSet, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels", PACKAGES[1], "import os\n")
    assert failure(controller, bare, tiny) == [("install_wrong_hash", host.name) for host in bare.cluster.hosts]
    folders = [path for path in environments(bare) if path.name.startswith(tiny.name)]
    assert [marker_of(folder)["state"] for folder in folders] == ["building"]


def test_a_package_that_no_source_has_is_named(
    controller: Controller, bare: Job, tiny: EnvironmentSet, tmp_path: Path
) -> None:
    next((tmp_path / "wheels").glob("second*")).unlink()
    assert {code for code, _ in failure(controller, bare, tiny)} == {"install_no_package"}


def test_an_index_that_does_not_answer_is_named(controller: Controller, bare: Job, tiny: EnvironmentSet) -> None:
    job = with_values(bare, {"cluster.install": Install(index_url="http://127.0.0.1:9/simple")})
    assert {code for code, _ in failure(controller, job, tiny)} == {"install_no_index"}


def test_nodes_without_uv_and_without_internet_are_named_with_the_fields_that_mend_it(
    controller: Controller, bare: Job, tiny: EnvironmentSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the nodes nor the server have uv, so pip of the nodes installs."""
    monkeypatch.setattr(environment_install, "own_uv", lambda: None)
    job = with_values(bare, {"cluster.install": Install(index_url="http://127.0.0.1:9/simple")})
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.install(job, quiet, {tiny.name: tiny})
    for problem, host in zip(raised.value.problems, bare.cluster.hosts, strict=True):
        # Debian's python3 without python3-venv cannot make an environment.
        expected = {"install_no_index": "cluster.install.index_url", "install_no_python": PYTHON_FIELD}
        assert (problem.field, problem.node) == (expected[problem.code], host.name)
        for lang in LANGUAGES:
            assert render_problem(lang, problem)["fix"]
    assert [marker_of(folder)["state"] for folder in environments(bare) if folder.name.startswith(tiny.name)] in (
        [],
        ["building"],
    )


def test_a_disk_that_is_too_small_is_named_before_anything_is_written(
    controller: Controller, bare: Job, tiny: EnvironmentSet
) -> None:
    big = replace(tiny, disk_gib=1e6)
    assert failure(controller, bare, big) == [("install_no_room", host.name) for host in bare.cluster.hosts]
    assert not [path for path in environments(bare) if path.name.startswith(tiny.name)]


def test_a_disk_that_becomes_full_is_named_with_need_and_room_and_goes_on_with_room(
    controller: Controller, bare: Job, tiny: EnvironmentSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both checks before the installation are switched off, as if somebody filled the disk after them."""
    check = b"if free_bytes(folder) < needed + RESERVE_SPACE"
    program = environment_install.node_program(INSTALLER)
    assert check in program
    monkeypatch.setattr(environment_install, "node_program", lambda name: program.replace(check, b"if False"))
    monkeypatch.setattr(environment_install, "check_nodes_for", lambda *arguments: None)
    uv = tmp_path / "uv"  # the program itself is larger than the disk
    uv.write_text(f'#!/bin/sh\nexec {environment_install.own_uv()} "$@"\n')
    monkeypatch.setattr(environment_install, "own_uv", lambda: uv)
    locks = [wheel(tmp_path / "wheels", PACKAGES[0]), wheel(tmp_path / "wheels", PACKAGES[1], "#" * (6 << 20))]
    (tmp_path / "lock.txt").write_text("".join(locks))
    with full_disk(tmp_path / "disk") as disk:
        job = with_values(bare, {"cluster.run_root": str(disk.folder)})
        with pytest.raises(ProblemsError) as raised:
            controller.tasks.install(job, quiet, {tiny.name: tiny})
        assert [(problem.code, problem.node) for problem in raised.value.problems] == [
            ("install_disk_full", host.name) for host in bare.cluster.hosts
        ]
        for problem in raised.value.problems:
            assert problem.field == "cluster.run_root"
            assert (problem.values["needed_gib"], problem.values["free_gib"]) == (1.1, 0.0)
            for lang in LANGUAGES:
                text = render_problem(lang, problem)
                assert text["fix"]
                assert str(problem.node) in text["message"]
                assert "{" not in "".join(text.values())
        assert [marker_of(folder)["state"] for folder in environments(job)] == ["building"]
        subprocess.run(["mount", "-o", "remount,size=32m", str(disk.folder)], check=True)
        python = Path(controller.tasks.install(job, quiet, {tiny.name: tiny}).python)
        (part,) = python.parents[1].glob("lib/python*/site-packages/second_part.py")
        assert part.stat().st_size > 6 << 20


def test_nodes_without_room_for_uv_itself_are_named_and_keep_no_part_of_it(
    controller: Controller, bare: Job, tiny: EnvironmentSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_install, "check_nodes_for", lambda *arguments: None)
    with full_disk(tmp_path / "disk") as disk:
        job = with_values(bare, {"cluster.run_root": str(disk.folder)})
        with pytest.raises(ProblemsError) as raised:
            controller.tasks.install(job, quiet, {tiny.name: tiny})
        assert [(problem.code, problem.node) for problem in raised.value.problems] == [
            ("node_io", host.name) for host in bare.cluster.hosts
        ]
        tools = disk.folder / environment_install.FOLDER / ".tools"
        assert [path.name for path in tools.iterdir() if path.name.startswith("uv-")] == []


def test_nodes_without_a_suitable_python_are_named(controller: Controller, bare: Job, tiny: EnvironmentSet) -> None:
    future = replace(tiny, pythons=("3.99",))
    assert failure(controller, bare, future) == [("install_no_python", host.name) for host in bare.cluster.hosts]


def test_a_folder_of_somebody_else_is_not_touched(controller: Controller, bare: Job, tiny: EnvironmentSet) -> None:
    for version in tiny.pythons:
        own = Path(bare.cluster.run_root, environment_install.FOLDER, tiny.folder(version), "precious")
        own.parent.mkdir(parents=True)
        own.write_text("mine")
    assert {code for code, _ in failure(controller, bare, tiny)} == {"install_foreign_folder"}
    assert own.read_text() == "mine"


def test_an_engine_that_cannot_be_imported_is_named(controller: Controller, bare: Job, tiny: EnvironmentSet) -> None:
    broken = replace(tiny, imports="import first_part, absent_part")
    assert {code for code, _ in failure(controller, bare, broken)} == {"install_import_failed"}


def test_an_installation_goes_on_after_its_processes_were_killed(
    open_controller: Callable[..., Controller], bare: Job, tiny: EnvironmentSet, tmp_path: Path
) -> None:
    """The import of the set waits for a file, so that the kill falls into the middle of the installation."""
    gate, pids = tmp_path / "gate", tmp_path / "pids"
    waiting = (
        f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getppid()}} {{os.getpid()}}\\n')\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\nimport first_part"
    )
    slow = replace(tiny, imports=waiting)
    caught: list[list[tuple[str, str | None]]] = []
    first = threading.Thread(target=lambda: caught.append(failure(open_controller(), bare, slow)))
    first.start()
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
    for pid in pids.read_text().split():
        with suppress(ProcessLookupError):  # It may have ended with the one before.
            os.kill(int(pid), signal.SIGKILL)
    (folder,) = [path for path in environments(bare) if path.name.startswith(tiny.name)]
    assert marker_of(folder)["state"] == "building"
    gate.touch()
    first.join()
    assert {code for code, _ in caught[0]} == {"install_command_failed"}
    open_controller().tasks.install(bare, quiet, {slow.name: slow})
    assert marker_of(folder)["state"] == "ready"


@pytest.fixture
def gated(tiny: EnvironmentSet, tmp_path: Path) -> EnvironmentSet:
    """Return the set with an import that waits for `gate` of the test's folder; `reached` says that it waits."""
    gate, reached = tmp_path / "gate", tmp_path / "reached"
    waiting = (
        f"import os, time; open({str(reached)!r}, 'a').close()\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\nimport first_part"
    )
    return replace(tiny, imports=waiting)


def test_an_installation_survives_an_outage_of_a_node(
    controller: Controller,
    cluster: LocalNodes,
    bare: Job,
    gated: EnvironmentSet,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[object] = []
    work = threading.Thread(
        target=lambda: ended.append(controller.tasks.install(bare, quiet, {gated.name: gated}).problems)
    )
    work.start()
    wait_for((tmp_path / "reached").exists)
    signal_sessions(cluster, 1, signal.SIGKILL, with_listener=True)
    try:
        wait_for(lambda: "a node that does not answer" in caplog.text)
    finally:
        cluster.start()
        (tmp_path / "gate").touch()
    work.join()
    assert ended == [()]


def test_a_node_that_is_lost_during_an_installation_is_named_with_its_field_and_fix(
    controller: Controller,
    cluster: LocalNodes,
    bare: Job,
    gated: EnvironmentSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(one_off_task, "LOST_AFTER_S", 1.0)
    caught: list[ProblemsError] = []

    def fail() -> None:
        with pytest.raises(ProblemsError) as raised:
            controller.tasks.install(bare, quiet, {gated.name: gated})
        caught.append(raised.value)

    work = threading.Thread(target=fail)
    work.start()
    wait_for((tmp_path / "reached").exists)
    signal_sessions(cluster, 1, signal.SIGKILL, with_listener=True)
    try:
        work.join()
    finally:
        cluster.start()
        (tmp_path / "gate").touch()
    lost, left = caught[0].problems
    host = bare.cluster.hosts[1].name
    assert (lost.code, lost.node, lost.field) == ("unreachable", host, "cluster.hosts[1].address")
    assert (left.code, left.node, left.severity) == ("install_left", host, "warning")
    assert all(render_problem(lang, problem)["fix"] for lang in LANGUAGES for problem in (lost, left))


def test_a_spare_that_does_not_answer_is_named_at_its_own_field(
    controller: Controller, bare: Job, tiny: EnvironmentSet
) -> None:
    spare = replace(bare.cluster.hosts[0], port=9)
    job = with_values(bare, {"cluster.spares": (spare,)})
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.install(job, quiet, {tiny.name: tiny})
    assert [(problem.node, problem.field) for problem in raised.value.problems] == [
        (spare.name, "cluster.spares[0].address")
    ]


def test_an_environment_that_the_job_names_already_is_replaced_on_every_host(bare: Job) -> None:
    own = {"llamafactory": Environment(python="/old/python", setup="/setup.sh")}
    hosts = (replace(bare.cluster.hosts[0], environments=own), *bare.cluster.hosts[1:])
    job = with_values(bare, {"cluster.hosts": hosts})
    installed = environment_install.Installed(name="tiny", python="/new/python", edit={})
    changed = with_python(job, installed)
    assert changed.cluster.hosts[0].environments["llamafactory"] == Environment(python="/new/python", setup="/setup.sh")
    assert changed.cluster.environments["llamafactory"].python == "/new/python"


@pytest.mark.parametrize(("lang", "word"), [("en", "interpreter"), ("zh", "解释器")])
def test_the_command_line_installs_and_writes_the_interpreter_into_the_job_file(
    lang: str,
    word: str,
    home: Path,
    cluster: LocalNodes,
    bare: Job,
    tiny: EnvironmentSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (home / "known_hosts").write_text((cluster.folder / "known_hosts").read_text())
    monkeypatch.setenv("MEGABOARD_HOME", str(home))
    monkeypatch.setattr(environment_install, "environment_sets", lambda: {tiny.name: tiny})
    file = tmp_path / "job.yaml"
    file.write_text(dump_job(bare))
    # The checks of a launch follow. They fail, because the tiny set has no engine.
    assert main(["--lang", lang, "install", str(file), "--write"]) == 1
    written, problems = load_job(file.read_text())
    assert written is not None, problems
    python = Path(written.cluster.environments["llamafactory"].python)
    assert marker_of(python.parents[1])["state"] == "ready"
    shown = capsys.readouterr()
    assert str(python) in shown.out
    assert word in shown.out
    assert [host.name for host in bare.cluster.hosts if host.name not in shown.err] == []
