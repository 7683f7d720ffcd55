"""The supervisor with real processes: it ends all processes that it starts, and no others.

Only real processes show this: sessions, orphans, ignored signals, a killed supervisor.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend import node
from backend.cluster import node_programs
from backend.node.supervisor.heartbeat import HEARTBEATS_BYTES
from backend.node.supervisor.processes import boot_id, find_process, members, read_process
from tests.waiting import wait_for, whole_lines

pytestmark = pytest.mark.slow

# Shaped like torchrun's: a leader, a worker in a session of its own, and its child that ignores TERM.
TREE = """
import os, signal, subprocess, sys, time
role = sys.argv[1]
def start(role): subprocess.Popen([sys.executable, __file__, role], start_new_session=role == "worker")
if role == "leader": start("worker")
if role == "worker": start("deaf")
if role == "deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("ready." + role, "w").write(str(os.getpid()))
time.sleep(120)
"""


class Run:
    """One run folder. The tests use its command line as a server does."""

    def __init__(self, root: Path, name: str = "run") -> None:
        self.root = root
        self.folder = root / name / "1" / "node0"
        self.folder.mkdir(parents=True)
        # Of this session alone: another may run the same tests on this machine.
        self.mark = f"{os.getpid()}.{root.name}.{name}.0"
        self.lock = root / "locks" / "10.0.0.1"
        (self.folder / "supervisor.py").write_bytes(node_programs.node_program("supervisor.py"))
        (self.folder / "tree.py").write_text(TREE)

    def write_spec(self, argv: list[str], **more: Any) -> None:
        spec = {
            "protocol": 1,
            "run": self.folder.parent.parent.name,
            "attempt": 1,
            "node_rank": 0,
            "mark": self.mark,
            "argv": argv,
            "environment": {},
            "setup": None,
            "secrets": None,
            "lock": str(self.lock),
            "grace_s": 0.5,
            "stall_s": 600,
        }
        (self.folder / "spec.json").write_text(json.dumps({**spec, **more}))

    def start_tree(self) -> dict[str, Any]:
        self.write_spec([sys.executable, "tree.py", "leader"])
        answer = self.call("start")
        assert answer["ok"], answer
        wait_for(lambda: (self.folder / "ready.deaf").exists())
        return answer

    def call(self, action: str, *arguments: str) -> dict[str, Any]:
        command = [sys.executable, self.folder / "supervisor.py", action, self.folder, "--token", "T", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        line = next(line for line in done.stdout.splitlines() if line.startswith("T"))
        return json.loads(line[1:])

    def read(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text())

    def wait_exit(self) -> dict[str, Any]:
        wait_for((self.folder / "exit").exists)
        return self.read("exit")

    def kill_supervisor(self) -> None:
        identity = self.read("pid")
        os.kill(identity["pid"], 9)
        wait_for(lambda: find_process(identity["pid"], identity["start"]) is None)

    def alive(self) -> list[str]:
        return [process.name for process in members(self.mark)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    if not sys.platform.startswith("linux"):
        pytest.skip("the supervisor needs Linux")
    run = Run(tmp_path)
    yield run
    for folder in tmp_path.glob("*/1/node0"):
        if (folder / "pid").exists() and not (folder / "exit").exists():
            stop = [sys.executable, folder / "supervisor.py", "stop", folder, "--grace", "0"]
            subprocess.run(stop, capture_output=True, timeout=300, check=True)


def test_a_finished_program_leaves_its_output_and_its_exit_and_frees_the_node(run: Run) -> None:
    run.write_spec(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])
    assert run.call("start")["ok"]
    exit_ = run.wait_exit()
    assert (exit_["code"], exit_["signal"], exit_["reason"], exit_["stopped"]) == (3, None, "failed", False)
    assert (run.folder / "out.log").read_text() == "out\nerr\n"
    assert not run.lock.exists()


def test_a_program_that_a_signal_ended_is_reported_by_the_signal(run: Run) -> None:
    run.write_spec(["/bin/sh", "-c", "kill -9 $$"])
    run.call("start")
    exit_ = run.wait_exit()
    assert (exit_["code"], exit_["signal"], exit_["reason"]) == (None, 9, "failed")


def test_the_program_gets_a_clean_environment_then_setup_then_spec_then_secrets(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAK", "from the server")
    setup, secrets = run.folder / "setup.sh", run.folder / "secrets.json"
    setup.write_text("export FROM_SETUP=1 BOTH=setup; echo setup speaks\n")
    secrets.write_text('{"TOKEN": "hidden"}')
    argv = [sys.executable, "-c", "import json, os; json.dump(dict(os.environ), open('environment.json', 'w'))"]
    run.write_spec(argv, setup=str(setup), secrets=str(secrets), environment={"BOTH": "spec"})
    run.call("start")
    assert run.wait_exit()["code"] == 0
    result = run.read("environment.json")
    assert (run.folder / "out.log").read_text() == "setup speaks\n"
    assert (result["FROM_SETUP"], result["BOTH"], result["TOKEN"]) == ("1", "spec", "hidden")
    assert result["MEGABOARD_RUN"] == run.mark
    assert result["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert "LEAK" not in result
    assert not secrets.exists()


@pytest.mark.e2e
def test_stop_ends_a_worker_in_its_own_session_and_a_child_that_ignores_term(run: Run) -> None:
    run.start_tree()
    assert len(run.alive()) == 3
    answer = run.call("stop", "--grace", "0.5")
    assert answer["left"] == []
    assert run.alive() == []
    assert (answer["exit"]["reason"], answer["exit"]["stopped"]) == ("stopped", True)
    assert not run.lock.exists()


def test_stop_works_after_the_supervisor_was_killed(run: Run) -> None:
    run.start_tree()
    run.kill_supervisor()
    assert run.call("status")["supervisor"] is False
    assert run.call("stop", "--grace", "0.5")["left"] == []
    assert run.alive() == []
    assert run.read("exit")["reason"] == "stopped"
    assert not run.lock.exists()


def test_a_run_whose_folder_was_removed_is_ended_by_its_mark(run: Run) -> None:
    run.start_tree()
    supervisor = run.read("pid")
    shutil.rmtree(run.folder)
    argv = [sys.executable, "-", "stop", run.folder, "--mark", run.mark, "--grace", "0.5", "--token", "T"]
    program = node_programs.node_program("supervisor.py")
    done = subprocess.run(argv, input=program, capture_output=True, timeout=300, check=True)
    assert json.loads(done.stdout[1:])["left"] == []
    assert run.alive() == []
    wait_for(lambda: find_process(supervisor["pid"], supervisor["start"]) is None)


def test_what_a_killed_leader_leaves_behind_is_ended(run: Run) -> None:
    run.start_tree()
    os.kill(int((run.folder / "ready.leader").read_text()), 9)
    assert run.wait_exit()["signal"] == 9
    assert run.alive() == []


def test_a_process_that_hides_its_mark_is_ended_too(run: Run) -> None:
    seconds = f"119.{os.getpid()}"  # Only of these tests.
    hidden = f"import subprocess; subprocess.Popen(['env', '-i', 'setsid', 'sleep', '{seconds}'])"
    run.write_spec([sys.executable, "-c", f"{hidden}; import time; time.sleep(120)"])
    run.call("start")
    wait_for(lambda: _find(f"sleep\x00{seconds}") is not None)
    run.call("stop", "--grace", "0.5")
    assert _find(f"sleep\x00{seconds}") is None


def test_a_stopped_process_is_woken_to_hear_the_term(run: Run) -> None:
    run.write_spec([sys.executable, "-c", "import os, time; os.kill(os.getpid(), 19); time.sleep(120)"])
    run.call("start")
    wait_for(lambda: [process.state for process in members(run.mark)] == ["T"])
    assert run.call("stop", "--grace", "30")["exit"]["signal"] == 15


@pytest.mark.e2e
def test_look_alikes_survive(run: Run, tmp_path: Path) -> None:
    """Their command line is the same, but they have no mark or the mark of another node."""
    twin = Run(tmp_path, "twin")
    command = [sys.executable, "tree.py", "look-alike"]
    plain = subprocess.Popen(command, cwd=twin.folder)
    other = subprocess.Popen(command, cwd=twin.folder, env={**os.environ, "MEGABOARD_RUN": f"{run.mark}0"})
    try:
        run.start_tree()
        assert run.call("stop", "--grace", "0.5")["left"] == []
        assert plain.poll() is None
        assert other.poll() is None
    finally:
        for process in (plain, other):
            process.kill()
            process.wait()


def test_a_second_start_of_the_same_attempt_is_refused_and_harms_nothing(run: Run) -> None:
    run.start_tree()
    answer = run.call("start")
    assert (answer["ok"], answer["reason"]) == (False, "start_failed")
    assert not (run.folder / "exit").exists()
    assert len(run.alive()) == 3


def test_a_second_run_on_the_node_is_refused_by_the_lock(run: Run, tmp_path: Path) -> None:
    run.start_tree()
    second = Run(tmp_path, "second")
    second.write_spec(["/bin/true"])
    answer = second.call("start")
    assert (answer["ok"], answer["reason"]) == (False, "lock_held")
    assert answer["holder"]["run"] == "run"
    assert second.read("exit")["reason"] == "lock_held"
    assert len(run.alive()) == 3


def test_the_lock_of_a_killed_supervisor_holds_while_its_processes_live(run: Run, tmp_path: Path) -> None:
    run.start_tree()
    run.kill_supervisor()
    second = Run(tmp_path, "second")
    second.write_spec(["/bin/true"])
    assert second.call("start")["reason"] == "lock_held"


@pytest.mark.parametrize("stale", [{"boot": "another boot"}, {"pid": 1, "start": 0}], ids=["rebooted", "gone"])
def test_a_stale_lock_is_taken_over(run: Run, stale: dict[str, Any]) -> None:
    run.lock.parent.mkdir()
    lock = {"pid": os.getpid(), "start": _start_of(os.getpid()), "boot": boot_id(), "mark": "old.0"}
    run.lock.write_text(json.dumps({**lock, **stale}))
    run.write_spec(["/bin/true"])
    assert run.call("start")["ok"]
    assert run.wait_exit()["reason"] == "finished"


def test_a_missing_program_is_an_answer_and_the_node_stays_free(run: Run) -> None:
    run.write_spec(["/nowhere/python"])
    answer = run.call("start")
    assert answer["reason"] == "start_failed"
    assert "/nowhere/python" in answer["detail"]
    assert run.read("exit")["reason"] == "start_failed"
    assert not run.lock.exists()


@pytest.mark.e2e
def test_a_run_that_writes_nothing_more_is_ended_as_stalled(run: Run) -> None:
    run.write_spec([sys.executable, "tree.py", "leader"], stall_s=1)
    run.call("start")
    assert run.wait_exit()["reason"] == "stalled"
    assert run.alive() == []


def test_an_end_that_the_ranks_agreed_on_is_recorded_as_stopped(run: Run) -> None:
    (run.folder / "control").mkdir()
    run.write_spec(["/bin/sh", "-c", "touch control/stopped"])
    run.call("start")
    exit_ = run.wait_exit()
    assert (exit_["code"], exit_["reason"], exit_["stopped"]) == (0, "stopped", True)


def test_a_start_that_fails_says_why(run: Run) -> None:
    run.lock.parent.write_text("a file where the folder of locks should be")
    run.write_spec(["/bin/true"])
    answer = run.call("start")
    assert (answer["ok"], answer["reason"]) == (False, "start_failed")
    assert answer["detail"] == f"[Errno 17] File exists: '{run.lock.parent}'"


def test_nothing_starts_after_a_stop(run: Run) -> None:
    run.write_spec(["/bin/true"])
    assert run.call("stop")["exit"]["reason"] == "stopped"
    assert run.call("start")["ok"] is False


@pytest.mark.e2e
def test_heartbeats_name_the_members_and_the_gpus(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(
        "#!/bin/sh\necho '0, 97, 70123, 81559, 612.50, 61, 1755, 0x0000000000000044'\n"
        "echo '1, [N/A], 1, 2, 3, 4, [N/A], [N/A]'\n"
    )
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    run.start_tree()
    complete = (2, 3)
    wait_for(lambda: any((len(beat["gpus"]), len(beat["members"])) == complete for beat in beats(run)))
    beat = beats(run)[-1]
    first = {"index": 0, "utilization": 97, "memory_used_mib": 70123, "memory_total_mib": 81559}
    values = {"power_w": 612.5, "temperature_c": 61, "clock_mhz": 1755, "clock_limits": 0x44}
    assert beat["gpus"][0] == {**first, **values}
    assert [beat["gpus"][1][key] for key in ("utilization", "clock_mhz", "clock_limits")] == [None] * 3
    assert {pid for pid, _ in beat["members"]} == {int(path.read_text()) for path in run.folder.glob("ready.*")}
    assert beat["memory_total_mib"] > beat["memory_used_mib"] > 0


def test_a_long_heartbeat_file_is_put_aside(run: Run) -> None:
    old = b"x" * HEARTBEATS_BYTES + b"\n"
    (run.folder / "heartbeat.jsonl").write_bytes(old)
    run.start_tree()
    wait_for(lambda: (run.folder / "heartbeat.old.jsonl").exists() and bool(beats(run)))
    assert (run.folder / "heartbeat.old.jsonl").read_bytes() == old


def test_it_runs_on_python_3_8() -> None:
    for name in node_programs.PROGRAMS.keys() - {node_programs.FALLBACK_STOP}:
        ast.parse(node_programs.node_program(name), feature_version=(3, 8))


@pytest.mark.parametrize("program", [name for name, modules in node_programs.PROGRAMS.items() if len(modules) > 1])
def test_a_name_means_one_thing_in_all_modules_that_are_joined(program: str) -> None:
    defined = [
        created.name if isinstance(created, ast.FunctionDef | ast.ClassDef) else ast.unparse(created.targets[0])
        for created in ast.parse(node_programs.node_program(program)).body
        if isinstance(created, ast.FunctionDef | ast.ClassDef | ast.Assign)
    ]
    assert len(defined) == len(set(defined))


def test_every_module_is_part_of_a_program() -> None:
    """A forgotten module would be missing only on the nodes."""
    root = Path(node.__file__).parent
    modules = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if path.name != "__init__.py"}
    assert modules <= {module for parts in node_programs.PROGRAMS.values() for module in parts}


def beats(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(run.folder / "heartbeat.jsonl")]


def _start_of(pid: int) -> int:
    process = read_process(pid)
    assert process
    return process.start


def _find(command: str) -> int | None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_text().startswith(command):
                return int(path.parent.name)
        except OSError:
            continue
    return None


@pytest.mark.parametrize("first", ["stop", "kill"])
def test_secrets_of_a_run_that_never_started_are_removed_by_its_stop(run: Run, first: str) -> None:
    """They were sent just before a start that did not come or was refused, or they were cut during the transfer."""
    secrets, half = run.folder / "secrets.json", run.folder / ".secrets.json.1a2b3c4d"
    half.write_text('{"TOK')
    run.write_spec(["/bin/true"], secrets=str(secrets))
    secrets.write_text('{"TOKEN": "hidden"}')
    if first == "kill":
        (run.folder / "control").mkdir()
        (run.folder / "control" / "kill").write_text('{"grace_s": 1}')
        assert not run.call("start")["ok"]
    else:
        run.call("stop", "--grace", "0")
    assert not secrets.exists()
    assert not half.exists()
