"""The supervisor during faults of its machine: a full disk, processes that hang, GPU memory that is not freed."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.node.supervisor.activity import Used, Work, is_work, used_by
from backend.node.supervisor.processes import members, read_process
from backend.node.supervisor.shutdown import ask_for_records
from tests.node.test_supervisor import Run, beats
from tests.node.test_supervisor import run as run_fixture
from tests.waiting import WITHIN_S, wait_for

pytestmark = pytest.mark.e2e  # Each takes seconds of heartbeats, stalls and grace time.
run = run_fixture

STACKS = "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1); open('up', 'w'); time.sleep(60)"


def _heard_until_up(program: str) -> list[str]:
    """Return the command of a program whose log grows until it has made the file `up`, because a slow start is no
    stall."""
    keep_writing = 'until [ -e up ]; do echo; sleep 0.1; done & exec "$@"'
    return ["/bin/sh", "-c", keep_writing, "sh", sys.executable, "-c", program]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MiB for the run folders."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_a_run_that_dies_of_a_full_disk_says_so(small_disk: Path) -> None:
    stored_run = Run(small_disk)
    stored_run.write_spec([sys.executable, "-c", "import sys, time; time.sleep(1); sys.exit(1)"])
    assert stored_run.call("start")["ok"]
    _fill(small_disk)
    exit_ = stored_run.wait_exit()
    assert (exit_["reason"], exit_["disk_full"]) == ("failed", True)


def test_a_run_on_a_full_disk_can_be_stopped(small_disk: Path) -> None:
    stored_run = Run(small_disk)
    stored_run.start_tree()
    _fill(small_disk)
    answer = stored_run.call("stop", "--grace", "0.5")
    assert answer["left"] == []
    assert answer["exit"]["reason"] == "stopped"
    assert stored_run.alive() == []


def test_the_time_of_an_end_is_when_the_program_ended_not_when_all_was_cleared_up(run: Run) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w'); time.sleep(60)"
    body = f"import subprocess, sys, time, os\nsubprocess.Popen([sys.executable, '-c', {deaf!r}])\n"
    body += "while not os.path.exists('deaf'): time.sleep(0.02)\nopen('ended', 'w').write(str(time.time()))"
    run.write_spec([sys.executable, "-c", body], grace_s=3)
    run.call("start")
    exit_ = run.wait_exit()
    ended = float((run.folder / "ended").read_text())
    cleared = (run.folder / "exit").stat().st_mtime
    assert exit_["time"] - ended < cleared - exit_["time"], "nearer to the end than to the record"


def test_a_process_that_stands_still_is_in_the_heartbeat_and_blamed_for_the_stall(run: Run) -> None:
    """The stop wakes the process, which then takes its time to end."""
    slow = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(3), sys.exit(0)))"
    body = f"import signal, sys, time; {slow}; print('up', flush=True); time.sleep(60)"
    run.write_spec([sys.executable, "-c", body], stall_s=20, grace_s=10, environment={"RANK": "3"})
    run.call("start")
    wait_for(lambda: "up" in (run.folder / "out.log").read_text())
    (process,) = members(run.mark)
    os.kill(process.pid, signal.SIGSTOP)
    stood = [process.pid, process.name, "T", 3]
    wait_for(lambda: any(stood in beat["stuck"] for beat in beats(run)))
    exit_ = run.wait_exit()
    assert (exit_["reason"], exit_["stuck"]) == ("stalled", [stood])
    beat = next(beat for beat in reversed(beats(run)) if beat["members"])
    ((rank, worked),) = beat["worked"]
    assert rank == 3
    assert max(worked, beat["wrote"]) < beat["time"] - 4, "since it was stopped it has neither worked nor written"


@pytest.mark.parametrize(("then", "at_work"), [("while True: pass", True), ("signal.pause()", False)])
def test_a_process_is_at_work_while_it_uses_the_processor_not_while_it_waits(then: str, at_work: bool) -> None:
    command = [sys.executable, "-c", f"import signal; print('up', flush=True)\n{then}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        work = Work()
        work.note([read_process(child.pid)], 10.0)
        begun = used_by(child.pid).seconds
        wait_for(lambda: not at_work or used_by(child.pid).seconds > begun + 0.2)
        work.note([read_process(child.pid)], 12.0)
        child.kill()
    assert work.last_active(990.0) == [[None, 1002.0 if at_work else 1000.0]]


def test_a_process_that_takes_memory_is_at_work() -> None:
    assert is_work(Used(1.0, 0), Used(1.0, 1 << 30), 2.0), "it reads a model"
    assert not is_work(Used(1.0, 1 << 30), Used(1.02, 1 << 30), 2.0), "it looks every now and then"


def test_a_stalled_program_shows_where_it_stood_before_it_is_ended(run: Run) -> None:
    run.write_spec(_heard_until_up(STACKS), stall_s=2)
    run.call("start")
    exit_ = run.wait_exit()
    assert exit_["reason"] == "stalled"
    assert 'File "<string>", line 1 in <module>' in (run.folder / "out.log").read_text()


def test_a_program_that_would_die_of_the_question_is_not_asked(run: Run) -> None:
    run.write_spec([sys.executable, "-c", "import time; time.sleep(60)"], stall_s=1)
    run.call("start")
    assert run.wait_exit()["signal"] == signal.SIGTERM


# As torch does (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, DumpPipe), for rank 3.
LISTENER = """
import os, time
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "3.pipe"
os.mkfifo(pipe)
heard = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
open("up", "w")
while not os.read(heard, 128): time.sleep(0.2)
with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + "3", "w") as record: record.write("whole")
time.sleep(60)
"""


def test_a_stalled_rank_writes_its_flight_record_before_it_is_ended(run: Run) -> None:
    """With the default settings, a stall is detected before NCCL's own time-out, which would write the record."""
    os.mkfifo(run.folder / "nccl_wanted_4.pipe")  # The rank has ended.
    variables = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": f"{run.folder}/nccl_trace_rank_"}
    run.write_spec(_heard_until_up(LISTENER), stall_s=1, environment=variables)
    run.call("start")
    assert run.wait_exit()["reason"] == "stalled"
    assert (run.folder / "nccl_trace_rank_3").read_text() == "whole"


def test_who_stops_a_run_waits_for_no_flight_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.node.supervisor.shutdown.RECORD_S", 1e9)
    os.mkfifo(tmp_path / "nccl_wanted_0.pipe")
    listener = os.open(tmp_path / "nccl_wanted_0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    asking = threading.Thread(target=ask_for_records, args=(str(tmp_path),), daemon=True)
    asking.start()
    wait_for(lambda: bool(select.select([listener], [], [], 0)[0]))
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "kill").write_text("{}")
    asking.join(WITHIN_S)
    os.close(listener)
    assert not asking.is_alive()


def test_the_end_says_whether_the_gpus_memory_came_back(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a stand-in nvidia-smi, GPU 0 frees its memory at the program's end and GPU 1 does not."""
    tools = tmp_path / "bin"
    tools.mkdir()
    used = "[ -e $D/taken ] && A=40000 || A=10; [ -e $D/began ] && B=39000 || B=10"
    rows = "\n".join(f'echo "{index}, 9, {used}, 81559, 60, 30, 1400, 0"' for index, used in ((0, "$A"), (1, "$B")))
    script = f"#!/bin/sh\nD={run.folder}\n{used}\n{rows}\n"
    (tools / "nvidia-smi").write_text(script)
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    run.write_spec([sys.executable, "-c", "import time; time.sleep(60)"])
    run.call("start")
    wait_for(lambda: any(beat["gpus"] for beat in beats(run)))
    for name in ("taken", "began"):
        (run.folder / name).touch()
    wait_for(lambda: any(gpu["memory_used_mib"] == 40000 for beat in beats(run) for gpu in beat["gpus"]))
    (run.folder / "taken").unlink()
    answer = run.call("stop", "--grace", "0.5")
    assert answer["exit"]["gpus"] == [[0, 10.0, 10.0], [1, 10.0, 39000.0]]


def test_an_end_that_somebody_else_had_to_record_says_that_the_supervisor_was_gone(run: Run) -> None:
    run.start_tree()
    run.kill_supervisor()
    assert run.call("stop", "--grace", "0.5")["exit"]["gone"] == "supervisor"


def test_an_end_before_a_restart_of_the_machine_says_so(run: Run) -> None:
    run.start_tree()
    run.kill_supervisor()
    (run.folder / "pid").write_text(json.dumps({**run.read("pid"), "boot": "another boot"}))
    assert run.call("stop", "--grace", "0.5")["exit"]["gone"] == "restart"
