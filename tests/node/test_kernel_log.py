"""GPU errors in the kernel log. A real machine wrote every text; its address is beside it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from backend.cluster.node_programs import SUPERVISOR, node_program
from backend.node.nvidia_smi import read_buses, read_gpus
from backend.node.supervisor.kernel_log import gpu_errors, log_end
from backend.node.supervisor.processes import boot_id, own_start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux")

# https://github.com/NVIDIA/nvidia-docker/issues/849
DBE = (
    "NVRM: Xid (PCI:0000:8a:00): 48, An uncorrectable double bit error (DBE) has been detected on GPU in the"
    " framebuffer at partition 4, subpartition 1."
)
RETIRED = (
    "NVRM: Xid (PCI:0000:8a:00): 63, Dynamic Page Retirement: New page retired, reboot to activate"
    " (0x00000000002ce8ac)."
)
# https://github.com/NVIDIA/NVSentinel/issues/155
OFF_BUS = "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"
# https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446
GSP = (
    "NVRM: Xid (PCI:0000:61:00): 119, pid=1365232, name=nvidia-smi, Timeout waiting for RPC from GSP!"
    " Expected function 76 (GSP_RM_CONTROL) (0x20801348 0x410)."
)
# https://github.com/leptonai/gpud/pull/1174
CONTAINED = "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error"
# Of drivers before 384: https://docs.nvidia.com/deploy/xid-errors/index.html
OLD = "NVRM: Xid (0000:03:00): 14, Channel 00000001"
# https://github.com/leptonai/gpud/pull/46
PEERMEM = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"
# https://github.com/NVIDIA/open-gpu-kernel-modules/issues/862
NO_DEVICES = "No devices were found"


class Machine:
    """A run folder, and the tools on its PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.tools = folder / "node0", folder / "bin"
        self.folder.mkdir()
        self.tools.mkdir()
        me = {"protocol": 1, "pid": os.getpid(), "start": own_start(), "boot": boot_id()}
        (self.folder / "pid").write_text(json.dumps(me))
        monkeypatch.setenv("PATH", f"{self.tools}:{os.environ['PATH']}")
        self.put("nvidia-smi", "")
        self.put("journalctl", "-- No entries --\n")

    def put(self, tool: str, out: str, err: str = "", status: int = 0) -> None:
        """Set what the tool prints from now on."""
        (self.tools / f"{tool}.out").write_text(out)
        (self.tools / f"{tool}.err").write_text(err)
        script = f'#!/bin/sh\ncat "$0.out"; cat "$0.err" >&2; exit {status}\n'
        (self.tools / tool).write_text(script)
        (self.tools / tool).chmod(0o755)

    def read(self) -> Any:
        return gpu_errors(str(self.folder))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def _both(before: str, after: str, last_s: float | None) -> str:
    assert last_s is not None
    return f"[{last_s:12.6f}] {before}\n[{last_s + 1:12.6f}] {after}\n"


def stamped(*lines: str, ago_s: float = 0.0, host: str = "") -> str:
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ago_s
    return "".join(f"[{seconds + index / 100:12.6f}] {host}{line}\n" for index, line in enumerate(lines))


def test_each_error_of_each_gpu_is_reported_once_with_its_first_time_and_how_often(machine: Machine) -> None:
    machine.put("dmesg", stamped(PEERMEM, DBE, RETIRED, OFF_BUS, GSP, GSP, CONTAINED, OLD))
    result = machine.read()
    assert result["unread"] == ""
    xids = [(xid["pci"], xid["xid"], xid["count"]) for xid in result["xids"]]
    assert xids == [
        ("0000:8a:00", 48, 1),
        ("0000:8a:00", 63, 1),
        ("0000:44:00", 79, 1),
        ("0000:61:00", 119, 2),
        ("0000:9b:00", 94, 1),
        ("0000:03:00", 14, 1),
    ]
    first = result["xids"][0]
    assert first["text"].startswith("An uncorrectable double bit error (DBE)")
    assert abs(first["time"] - time.time()) < 60
    assert first["gpu"] is None


def test_a_gpu_is_called_by_its_index_and_one_that_is_not_the_node_s_is_left_out(machine: Machine) -> None:
    """A container reads the machine's log, which includes the GPUs of its neighbours."""
    machine.put("nvidia-smi", "0, 00000000:44:00.0\n3, 00000000:8A:00.0\n")
    buses = read_buses()
    assert buses == {0: "0000:44:00", 3: "0000:8a:00"}
    gpus = [{"index": index, "memory_used_mib": 1.0, "bus": bus} for index, bus in buses.items()]
    (machine.folder / "gpus").write_text(json.dumps({"gpus": gpus}))
    machine.put("dmesg", stamped(DBE, GSP))
    result = machine.read()
    assert [(xid["gpu"], xid["xid"]) for xid in result["xids"]] == [(3, 48)]


def test_what_was_before_the_run_is_not_its_own(machine: Machine) -> None:
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    machine.put("dmesg", stamped(DBE, ago_s=uptime) + stamped(OFF_BUS))
    assert [xid["xid"] for xid in machine.read()["xids"]] == [79]


def test_a_run_s_lines_are_those_behind_the_last_one_at_its_start_whatever_the_log_s_clock_says(
    machine: Machine,
) -> None:
    """The log's clock and other clocks differ, and the previous run on this node may have ended seconds ago."""
    machine.put("dmesg", stamped(DBE, ago_s=-300.0))
    (machine.folder / "gpus").write_text(json.dumps({"gpus": [], "log_end": log_end()}))
    machine.put("dmesg", _both(DBE, OFF_BUS, log_end()))
    assert [xid["xid"] for xid in machine.read()["xids"]] == [79]


def test_a_log_that_may_not_be_read_is_reported_unless_the_journal_has_it(machine: Machine) -> None:
    refused = "dmesg: read kernel buffer failed: Operation not permitted\n"
    machine.put("dmesg", "", refused, 1)
    assert machine.read() == {"xids": [], "unread": refused.strip()}
    # The form: https://github.com/systemd/systemd/issues/34250
    machine.put("journalctl", stamped(OFF_BUS, host="gpu1 kernel: "))
    result = machine.read()
    assert ([xid["xid"] for xid in result["xids"]], result["unread"]) == ([79], "")


def test_this_machine_s_own_dmesg_is_read_or_the_reason_is_given(machine: Machine) -> None:
    result = machine.read()
    done = subprocess.run(["dmesg"], capture_output=True, text=True, check=False)
    assert bool(result["unread"]) == (done.returncode != 0)


def test_a_node_without_gpus_or_one_that_restarted_has_nothing_to_say(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put("dmesg", stamped(OFF_BUS))
    (machine.folder / "pid").write_text(json.dumps({"pid": 1, "start": 1, "boot": "another"}))
    assert machine.read() is None
    (machine.tools / "nvidia-smi").unlink()
    monkeypatch.setenv("PATH", str(machine.tools))
    assert machine.read() is None


@pytest.mark.parametrize("text", [NO_DEVICES, "0, [N/A]", 'Field "x" is not a valid field to query.'])
def test_an_nvidia_smi_that_lists_no_gpus_ends_no_supervisor(machine: Machine, text: str) -> None:
    machine.put("nvidia-smi", f"{text}\n", status=6)
    assert read_gpus() == []


def test_a_driver_that_does_not_know_the_last_question_answers_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    unknown = 'Field "clocks_throttle_reasons.active" is not a valid field to query.'
    smi.write_text(
        f"#!/bin/sh\ncase $1 in *throttle*) echo '{unknown}'; exit 2;; esac\n"
        "echo '0, 97, 70123, 81559, 612.50, 61, 1755'\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    [gpu] = read_gpus()
    assert (gpu["clock_mhz"], gpu.get("clock_limits")) == (1755, None)
    assert read_buses() == {}


def test_the_supervisor_s_one_file_reads_it_too(machine: Machine) -> None:
    machine.put("dmesg", stamped(OFF_BUS))
    program = node_program(SUPERVISOR).decode().replace('if __name__ == "__main__":', "if False:")
    program += f"\nprint(json.dumps(gpu_errors({str(machine.folder)!r})))"
    (machine.folder / "program.py").write_text(program)
    done = subprocess.run([sys.executable, machine.folder / "program.py"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["xids"][0]["xid"] == 79
