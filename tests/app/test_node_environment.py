"""The build of a CPU node's environment: one builder at a time, and an interrupted build continues."""

import fcntl
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.demo import node_environment
from app.demo.node_environment import (
    FROM_SOURCE,
    LOCKS,
    LOG,
    READY,
    TORCH,
    NodeEnvironmentError,
    base_python,
    build,
    cache_folder,
    is_ready,
    locks_folder,
)
from app.text import LANGUAGES

pytestmark = pytest.mark.slow

LANG = LANGUAGES[0]
PROJECT = """\
[project]
name = "demo-package"
version = "1"
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel of one tiny package."""
    source = tmp_path_factory.mktemp("source")
    (source / "demo_package").mkdir()
    (source / "demo_package" / "__init__.py").touch()
    (source / "pyproject.toml").write_text(PROJECT)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return source / "dist"


@pytest.fixture
def locks(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return lock files that require that package, without a network."""
    (wheel,) = wheels.iterdir()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    locks = tmp_path / "locks"
    locks.mkdir()
    for name in LOCKS:
        (locks / name).write_text(f"demo-package==1 --hash=sha256:{digest}\n")
    monkeypatch.setattr(node_environment, "locks_folder", lambda: locks)
    monkeypatch.setattr(node_environment, "_IMPORT_TORCH", "import demo_package")
    monkeypatch.setattr(node_environment, "_IMPORTS", "import demo_package")
    monkeypatch.setattr(node_environment, "NEEDED_GB", 0)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return locks


def made(folder: Path) -> list[str]:
    """Build the environment and return the lines that a user sees."""
    lines: list[str] = []
    build(folder, base_python(), LANG, lines.append)
    return lines


def test_a_build_replaces_a_removed_python_continues_after_an_interruption_and_happens_once(
    tmp_path: Path, locks: Path
) -> None:
    folder = tmp_path / "node"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(tmp_path / "removed")
    (folder / READY).touch()
    assert not is_ready(folder)
    lock = (locks / FROM_SOURCE).read_text()
    (locks / FROM_SOURCE).write_text("demo-package==2 --hash=sha256:" + 64 * "0")
    with pytest.raises(NodeEnvironmentError) as error:
        made(folder)
    assert error.value.code == "command"
    assert "demo-package==2" in error.value.text(LANG)
    assert not is_ready(folder)
    (package,) = folder.glob("lib/python*/site-packages/demo_package")
    (metadata,) = package.parent.glob("demo_package-1.dist-info")
    # What pip leaves when it is killed while it compiles a package.
    (package / "__init__.py").unlink()
    (metadata / "RECORD").unlink()
    (locks / FROM_SOURCE).write_text(lock)
    assert len(made(folder)) > len(LOCKS)
    assert (package / "__init__.py").exists()
    assert is_ready(folder)
    log = (folder / LOG).read_text()
    assert log.count("Requirement already satisfied") == len(LOCKS) - 1
    assert made(folder) == []


def test_a_build_of_torch_that_does_not_start_names_the_index_and_is_not_kept(
    tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_environment, "_IMPORT_TORCH", "raise ImportError('libcudnn.so.9')")
    monkeypatch.setenv("TORCH_INDEX", "https://mirror.example.org/cpu")
    folder = tmp_path / "node"
    with pytest.raises(NodeEnvironmentError) as error:
        made(folder)
    assert error.value.code == "torch"
    for lang in LANGUAGES:
        text = error.value.text(lang)
        assert "https://mirror.example.org/cpu" in text
        assert "libcudnn.so.9" in text
    assert "Skipping torch as it is not installed" in (folder / LOG).read_text(), "pip was asked to remove it"


def test_a_second_builder_waits_for_the_first_and_builds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    (folder / "bin").mkdir(parents=True)
    first, lines, waits = os.open(folder, os.O_RDONLY), [], threading.Event()
    fcntl.flock(first, fcntl.LOCK_EX)

    def show(line: str) -> None:
        lines.append(line)
        waits.set()

    second = threading.Thread(target=build, args=(folder, sys.executable, LANG, show))
    second.start()
    assert waits.wait(60)
    (folder / "bin" / "python").touch()
    (folder / READY).touch()
    os.close(first)
    second.join(60)
    assert len(lines) == 1
    assert not (folder / LOG).exists()


def test_a_command_whose_parent_was_killed_still_holds_the_lock(tmp_path: Path) -> None:
    with node_environment._only_builder(tmp_path, pytest.fail) as lock:
        orphan = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock])
    other = os.open(tmp_path, os.O_RDONLY)
    with orphan, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_full_disk_is_an_error_before_anything_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_environment, "NEEDED_GB", 1e9)
    with pytest.raises(NodeEnvironmentError) as error:
        made(tmp_path)
    assert error.value.code == "space"
    assert list(tmp_path.iterdir()) == []


def test_a_python_that_cannot_build_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", "/bin/false")
    with pytest.raises(NodeEnvironmentError) as error:
        base_python()
    assert error.value.code == "python"
    assert all(error.value.text(lang) for lang in LANGUAGES)


def test_other_locks_get_another_folder_in_the_user_s_cache(
    tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = cache_folder(sys.executable)
    assert before == cache_folder(sys.executable)
    assert before.parent == tmp_path / "megaboard"
    (locks / TORCH).write_text("torch==1\n")
    assert cache_folder(sys.executable) != before
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder(sys.executable).is_relative_to(Path.home() / ".cache")


def test_the_module_needs_the_standard_library_only() -> None:
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(locks_folder().parent)!r})"]
    command[-1] += "; import app.demo.node_environment"
    subprocess.run(command, check=True)
