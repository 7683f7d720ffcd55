"""The program that lists a node's hardware, run on this machine."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.node.checks import hardware


@pytest.mark.parametrize(
    ("limit", "mib"), [("max\n", 2048), ("1073741824\n", 1024), ("9223372036854771712\n", 2048), (None, 2048)]
)
def test_a_container_has_no_more_memory_than_it_may_use(
    limit: str | None, mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:        2097152 kB\nMemFree:            1000 kB\n")
    if limit:
        (tmp_path / "limit").write_text(limit)
    monkeypatch.setattr(hardware, "MEMORY", str(tmp_path / "meminfo"))
    monkeypatch.setattr(hardware, "LIMITS", (str(tmp_path / "limit"), str(tmp_path / "none")))
    assert hardware.memory_mib() == mib


def test_an_interface_that_is_gone_has_no_networks() -> None:
    assert "127.0.0.1/8" in hardware.networks_of("lo")
    assert hardware.networks_of("gone0") == []


class TestLogout:
    """The settings of logind and of the control group for the processes that a log-in leaves behind."""

    SCOPE = "0::/user.slice/user-1000.slice/session-12.scope"

    @pytest.fixture
    def told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str, str], bool]:
        def tell(group: str, kills: str, only: str, excluded: str) -> bool:
            (tmp_path / "cgroup").write_text(group)
            script = f"#!/bin/sh\n[ $# = 7 ] || exit 1\nprintf '%s\\n' 'b {kills}' 'as {only}' 'as {excluded}'\n"
            (tmp_path / "busctl").write_text(script)
            (tmp_path / "busctl").chmod(0o755)
            monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
            monkeypatch.setattr(hardware, "CGROUP", str(tmp_path / "cgroup"))
            monkeypatch.setattr(hardware, "user_name", lambda: "train")
            return hardware.ends_at_logout()

        return tell

    @pytest.mark.parametrize(
        ("group", "kills", "only", "excluded", "ends"),
        [
            (SCOPE, "true", "0", '1 "root"', True),
            (SCOPE, "false", "0", '1 "root"', False),
            (SCOPE, "true", "0", '2 "root" "train"', False),
            (SCOPE, "true", '1 "guest"', '1 "root"', False),
            (SCOPE, "true", '2 "guest" "train"', '1 "root"', True),
            ("0::/system.slice/ssh.service", "true", "0", '1 "root"', False),
        ],
    )
    def test_a_log_in_that_ends_its_processes_is_known(
        self, told: Callable[..., bool], group: str, kills: str, only: str, excluded: str, ends: bool
    ) -> None:
        assert told(group, kills, only, excluded) is ends

    def test_without_logind_nothing_ends(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "cgroup").write_text(self.SCOPE)
        monkeypatch.setattr(hardware, "CGROUP", str(tmp_path / "cgroup"))
        monkeypatch.setenv("PATH", str(tmp_path))
        assert hardware.ends_at_logout() is False
