"""An environment that uv made has no pip. The installer puts one there, or names what is missing."""

import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from backend.node.installer import build
from backend.node.installer.folder import MARKER, InstallError, write_record

DIGEST = "0" * 8
ENSUREPIP = """
import pathlib, sysconfig
folder = pathlib.Path(sysconfig.get_path("purelib"), "pip")
folder.mkdir()
(folder / "__init__.py").touch()
(folder / "__main__.py").touch()
"""
"""Stands for the real one, which takes 20 seconds. Its pip installs nothing."""


def write_ensurepip(folder: Path, program: str) -> None:
    (folder / "ensurepip").mkdir(parents=True, exist_ok=True)
    (folder / "ensurepip" / "__init__.py").touch()
    (folder / "ensurepip" / "__main__.py").write_text(program)


@pytest.fixture
def request_without_pip(tmp_path: Path) -> dict[str, Any]:
    """Return the request for an environment that an earlier installer began, without pip."""
    folder = tmp_path / "root" / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    write_record(str(folder / MARKER), {"name": "tiny", "digest": DIGEST, "state": "building", "id": "a"})
    (tmp_path / "0.txt").write_text("")
    write_ensurepip(tmp_path / "modules", ENSUREPIP)
    return {
        "root": str(tmp_path / "root"),
        "folder": folder.name,
        "name": "tiny",
        "digest": DIGEST,
        "uv": None,
        "steps": [{"lock": "0.txt", "hashes": False, "from_source": False, "index": None}],
        "needed_bytes": 0,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "python_download": False,
        "offline": True,
        "find_links": None,
        "index_url": None,
        "remove": [],
        "imports": "import json",
        "variables": {"PYTHONPATH": str(tmp_path / "modules")},
    }


def pips(request: dict[str, Any]) -> list[Path]:
    return list(Path(request["root"], request["folder"]).glob("lib/python*/site-packages/pip"))


@pytest.fixture(autouse=True)
def no_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_uv", lambda sent=None: None)
    monkeypatch.setattr(build, "check_space", lambda folder, needed: None)


def test_an_environment_without_pip_gets_one_before_pip_installs(
    request_without_pip: dict[str, Any], tmp_path: Path
) -> None:
    build.Build(str(tmp_path), request_without_pip).run()
    assert pips(request_without_pip)


def test_a_finished_environment_of_an_earlier_version_gets_pip_too(
    request_without_pip: dict[str, Any], tmp_path: Path
) -> None:
    """The commands of the preflight need it."""
    marker = Path(request_without_pip["root"], request_without_pip["folder"], MARKER)
    write_record(str(marker), {"name": "tiny", "digest": DIGEST, "state": "ready", "id": "a"})
    build.Build(str(tmp_path), request_without_pip).run()
    assert pips(request_without_pip)


@pytest.mark.parametrize("state", ["building", "ready"])
def test_a_python_that_brings_no_pip_is_named_where_pip_must_install(
    state: str, request_without_pip: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(request_without_pip["root"], request_without_pip["folder"])
    write_record(str(folder / MARKER), {"name": "tiny", "digest": DIGEST, "state": state, "id": "a"})
    # As Debian's python3 without python3-venv.
    write_ensurepip(tmp_path / "modules", "raise SystemExit('ensurepip is not available')")
    installation = build.Build(str(tmp_path), request_without_pip)
    if state == "ready":
        installation.run()
        return
    with pytest.raises(InstallError) as raised:
        installation.run()
    assert raised.value.answer["code"] == "install_no_pip"
