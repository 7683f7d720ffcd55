"""The kernel's count of processes that it killed for memory, with a real control group."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.node.supervisor.oom_kills import OomKills, counter_of

MEMORY = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup")
LIMIT = 64 << 20
GROW = "import sys; sys.stdin.readline(); held = bytearray(300 << 20); print(len(held))"


def _limits() -> tuple[Path, dict[str, str]]:
    name = f"megaboard-{uuid.uuid4().hex[:8]}"
    if MEMORY.is_dir():
        return MEMORY / name, {"memory.limit_in_bytes": str(LIMIT), "memory.memsw.limit_in_bytes": str(LIMIT)}
    return UNIFIED / name, {"memory.max": str(LIMIT), "memory.swap.max": "0"}


@pytest.fixture
def group() -> Iterator[Path]:
    """Yield a control group with a small limit of memory."""
    folder, limits = _limits()
    try:
        folder.mkdir()
        for name, value in limits.items():
            if (folder / name).exists():
                (folder / name).write_text(value)
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error.strerror}")
    if not any((folder / name).exists() for name in limits):
        folder.rmdir()
        pytest.skip("this kernel has no control groups for memory")
    yield folder
    folder.rmdir()


def test_a_process_that_the_kernel_kills_for_memory_is_counted(group: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", GROW], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    (group / "cgroup.procs").write_text(str(child.pid))
    kills = OomKills(child.pid)
    assert kills.new() == 0
    child.communicate(b"go\n")
    assert (child.returncode, kills.new()) == (-9, 1)


def test_a_process_that_is_gone_has_no_count() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert (counter_of(child.pid), OomKills(child.pid).new()) == ("", 0)
    assert OomKills(os.getpid()).new() == 0
