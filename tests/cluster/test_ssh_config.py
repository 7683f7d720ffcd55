"""A `Match exec` of ~/.ssh/config runs nothing, and whoever's log-in hangs on it hears of its line."""

import shutil
from pathlib import Path

import pytest

from backend.cluster import ssh_config
from backend.cluster.node import NodeError
from backend.cluster.ssh_config import ALLOWED, find_target
from backend.job.cluster import Host

CONFIG = """\
Host plain
  User first
Match originalhost plain !canonical exec "touch {ran}"
  User late

Match host gpu* exec "touch {ran}"
  ServerAliveInterval 5
  User second
Match !exec "touch {ran}" originalhost other
  ForwardAgent no
Match host exec-host
  Port 2200
Host *
  User last
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(ALLOWED, raising=False)
    (tmp_path / "config").write_text(CONFIG.format(ran=tmp_path / "ran"))
    return tmp_path


def test_a_host_whose_settings_hang_on_a_program_is_told_file_and_line(folder: Path) -> None:
    with pytest.raises(NodeError) as caught:
        find_target(Host(address="gpu1"), folder)
    values = caught.value.values
    assert (caught.value.code, values["path"], values["line"]) == ("match_exec_refused", f"{folder}/config", "6")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("address", "user", "port"),
    [("plain", "first", 22), ("other", "last", 22), ("exec-host", "last", 2200), ("x", "last", 22)],
)
def test_other_hosts_take_what_the_file_says_of_them(folder: Path, address: str, user: str, port: int) -> None:
    target = find_target(Host(address=address), folder)
    assert (target.user, target.port) == (user, port)
    assert not (folder / "ran").exists()


INCLUDING = """\
Include {folder}/parts/*
Host gpu-d
  Include {folder}/nested
  Port 2222
Host *
  User last
"""
PARTS = {
    "parts/a": "Host gpu-a\n  Port 2201\n  User a\n",
    "parts/b": "Host gpu-b gpu-c\n  HostName 10.0.0.9\n  ProxyJump gate\n",
    "parts/old/c": "Host *\n  Port 1\n",
    "nested": "User nested\n",
}


@pytest.fixture
def including(folder: Path) -> Path:
    for name, text in PARTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "config").write_text(INCLUDING.format(folder=folder))
    return folder


@pytest.mark.parametrize("address", ["gpu-a", "gpu-b", "gpu-c", "gpu-d", "gpu-e"])
def test_included_files_count_as_they_do_for_openssh(
    including: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    ours = find_target(Host(address=address), including)
    monkeypatch.setenv(ALLOWED, "1")
    assert ours == find_target(Host(address=address), including)


def test_an_included_file_is_found_beside_the_configuration_and_may_include_others(folder: Path) -> None:
    (folder / "config").write_text('Include first "no such"\nUser late\n')
    (folder / "first").write_text("Include second\nUser first\n")
    (folder / "second").write_text("Include config\nPort 2300\n")
    target = find_target(Host(address="x"), folder)
    assert (target.user, target.port) == ("first", 2300)


def test_files_that_all_include_one_another_are_read_once_for_each_block(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken in every order, ten of them are ten million."""
    (folder / "config").write_text("Include all/*\nHost x\n  Include all/*\n  User late\n")
    (folder / "all").mkdir()
    for number in range(10):
        (folder / f"all/{number}").write_text(f"Include all/*\nHost y{number} x{number}\n  Port {2300 + number}\n")
    included, asked = ssh_config._included, []
    monkeypatch.setattr(ssh_config, "_included", lambda *where: asked.append(where) or included(*where))
    targets = [find_target(Host(address=address), folder) for address in ("x", "x7")]
    assert [(target.user == "late", target.port) for target in targets] == [(True, 22), (False, 2307)]
    assert len(asked) == 2 * (2 + 10 + 10)


def test_what_stands_behind_an_include_in_an_included_file_holds_for_the_host(folder: Path) -> None:
    (folder / "config").write_text("Host x\n  Include first\n")
    (folder / "first").write_text("Include second\nUser first\n")
    (folder / "second").write_text("Port 2300\n")
    target = find_target(Host(address="x"), folder)
    assert (target.user, target.port) == ("first", 2300)


def test_a_program_in_an_included_file_is_refused_with_that_file_and_line(folder: Path) -> None:
    (folder / "config").write_text("Include conf.d/*\n")
    (folder / "conf.d").mkdir()
    (folder / "conf.d/a b").write_text(f'\nMatch exec "touch {folder}/ran"\n User evil\n')
    with pytest.raises(NodeError) as caught:
        find_target(Host(address="x"), folder)
    values = caught.value.values
    assert (caught.value.code, values["path"], values["line"]) == ("match_exec_refused", f"{folder}/conf.d/a b", "2")


def test_what_the_job_file_says_hangs_on_nothing(folder: Path) -> None:
    assert find_target(Host(address="gpu1", user="mine"), folder).user == "mine"


@pytest.mark.parametrize("line", ['Match e"xe"c "touch {ran}"', 'Match=exec "touch {ran}"', 'match EXEC "touch {ran}"'])
def test_no_spelling_of_exec_runs_a_program(folder: Path, line: str) -> None:
    (folder / "config").write_text(line.format(ran=folder / "ran") + "\n User evil\n")
    with pytest.raises(NodeError, match="match_exec_refused"):
        find_target(Host(address="x"), folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("text", ['Match host "x\n User a\n', "Host *\n Port many\n", "Host x\n\n=\n"])
def test_a_file_that_cannot_be_understood_is_told(folder: Path, text: str) -> None:
    (folder / "config").write_text(text)
    with pytest.raises(NodeError, match="bad_ssh_config") as caught:
        find_target(Host(address="x"), folder)
    assert caught.value.values["path"] == f"{folder}/config"
