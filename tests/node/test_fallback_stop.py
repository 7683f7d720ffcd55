"""A node without a working Python: a shell ends every process with the mark of the run and nothing else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.cluster.node_programs import FALLBACK_STOP, node_program
from backend.node.supervisor.processes import find_process, members
from backend.node.tools import MARK
from tests.node.test_supervisor import Run, run  # noqa: F401 - a fixture
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e  # Each takes seconds of signals and grace time.


def _end(
    mark: Run, shell: str = "/bin/sh", grace: str = "1", folder: str | None = None, path: str = os.defpath
) -> dict[str, Any]:
    command = [shell, "-s", folder or str(mark.folder), mark.mark, grace, "--token", "T"]
    bare = {"PATH": path}
    done = subprocess.run(
        command, input=node_program(FALLBACK_STOP), capture_output=True, env=bare, timeout=300, check=True
    )
    (line,) = done.stdout.decode().splitlines()
    assert line.startswith("T")
    return json.loads(line[1:])


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_shell_ends_what_a_killed_supervisor_left_and_what_ignores_term(run: Run, shell: str) -> None:  # noqa: F811
    run.start_tree()
    run.kill_supervisor()
    assert run.alive()
    assert _end(run, shell) == {"left": []}
    assert run.alive() == []


def test_a_supervisor_that_lives_is_told_and_records_the_end(run: Run) -> None:  # noqa: F811
    run.start_tree()
    assert _end(run) == {"left": []}
    assert run.wait_exit()["reason"] == "stopped"
    assert not run.lock.exists()


def test_the_folder_may_be_gone_too(run: Run) -> None:  # noqa: F811
    run.start_tree()
    run.kill_supervisor()
    assert _end(run, folder=f"{run.folder}/gone") == {"left": []}
    assert run.alive() == []


def test_a_process_that_cleared_its_mark_is_known_by_the_last_heartbeat(run: Run) -> None:  # noqa: F811
    run.write_spec(["/usr/bin/env", "-i", sys.executable, "-c", "import signal; signal.pause()"])
    run.call("start")
    beats = run.folder / "heartbeat.jsonl"
    wait_for(lambda: beats.exists() and beats.read_text().endswith("\n"))
    ((pid, start),) = json.loads(beats.read_text().splitlines()[-1])["members"]
    run.kill_supervisor()
    # `env` itself has it still.
    wait_for(lambda: members(run.mark) == [])
    assert find_process(pid, start)
    assert _end(run) == {"left": []}
    assert find_process(pid, start) is None


def test_a_mark_that_the_server_does_not_know_is_read_in_the_folder(run: Run) -> None:  # noqa: F811
    run.start_tree()
    run.kill_supervisor()
    spec = run.read("spec.json")
    (run.folder / "spec.json").write_text(json.dumps(spec, indent=1))
    mark, run.mark = run.mark, ""
    assert _end(run) == {"left": []}
    run.mark = mark
    assert run.alive() == []


def test_without_a_mark_nothing_is_said_to_have_ended(run: Run) -> None:  # noqa: F811
    run.mark = ""
    with pytest.raises(subprocess.CalledProcessError):
        _end(run, folder=f"{run.folder}/gone")


def test_a_folder_on_a_file_server_that_is_dead_is_not_waited_for(run: Run, tmp_path: Path) -> None:  # noqa: F811
    """A stand-in for the check of the folder hangs, as each access would."""
    run.start_tree()
    run.kill_supervisor()
    (tmp_path / "mkdir").write_text("#!/bin/sh\nexec sleep 40\n")
    (tmp_path / "mkdir").chmod(0o755)
    assert _end(run, path=f"{tmp_path}:{os.defpath}") == {"left": []}
    assert run.alive() == []


def test_look_alikes_survive(run: Run) -> None:  # noqa: F811
    """The mark of node 1 begins like that of node 10, and an environment may hold any text."""
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    others = [{MARK: f"{run.mark}0"}, {"NOTE": f"{MARK}={run.mark}"}, {f"X{MARK}": run.mark}]
    started = [subprocess.Popen(command, env=other) for other in others]
    try:
        run.start_tree()
        assert _end(run) == {"left": []}
        assert [item.poll() for item in started] == [None] * len(others)
    finally:
        for item in started:
            item.kill()
            item.wait()


def test_a_stopped_process_is_ended(run: Run) -> None:  # noqa: F811
    run.start_tree()
    run.kill_supervisor()
    for process in members(run.mark):
        os.kill(process.pid, signal.SIGSTOP)
    assert _end(run) == {"left": []}
    wait_for(lambda: run.alive() == [])
