"""Every fault of a gang: detected in time, with the right node, no process left, and no point lost or doubled."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from backend.job.problems import ProblemsError
from backend.runs.launch import launch
from backend.runs.states import EventKind, RunState
from backend.runs.supervise.gang_rules import LOST_AFTER_S
from tests.chaos.lab import Lab
from tests.chaos.scene import TRAINERS, Scene, scene
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos]

STALL_S = 10
"""In place of half an hour."""
TORCH_STALL_S = 60
"""The same with torch, whose import alone is silent for longer than ten seconds."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of node 1 in a running gang, and its expected outcome."""

    name: str
    act: Callable[[Scene], object]
    state: RunState = RunState.FAILED
    cause: str
    culprit: int = 1
    detected_within_s: float
    returns: bool = True
    """The node's files can be read again after the end."""
    patience_s: float = LOST_AFTER_S


def _kill(what: str) -> Callable[[Scene], object]:
    return lambda scene: scene.lab.signal(1, what, signal.SIGKILL)


def _stop_forever(what: str) -> Callable[[Scene], object]:
    return lambda scene: scene.lab.signal(1, what, signal.SIGSTOP)


LOST = {"state": RunState.LOST, "cause": "node_lost"}
SOON = {"patience_s": 10.0, "detected_within_s": 70}
"""The same patience for each way to be lost would make the table long, and say no more."""
WORKER = {"fake": "run.py worker", "torchrun": "entry.py"}
ENDING = (
    Fault(name="kill -9 worker", act=lambda it: _kill(WORKER[it.trainer])(it), cause="killed", detected_within_s=30),
    Fault(name="kill -9 torchrun", act=_kill("torch.distributed.run"), cause="killed", detected_within_s=30),
    Fault(name="kill -9 supervisor", act=_kill("supervisor.py start"), cause="supervisor_gone", detected_within_s=60),
    Fault(name="kill -9 node's init", act=lambda it: it.lab.kill_node(1), **LOST, **SOON, returns=False),
    Fault(name="link down", act=lambda it: it.lab.set_link(1, "down"), **LOST, detected_within_s=90),
    Fault(name="link down, server to node", act=lambda it: it.lab.deafen(1), **LOST, **SOON),
    Fault(name="link down, node to server", act=lambda it: it.lab.silence(1), **LOST, **SOON),
    Fault(name="kill -9 sshd, for good", act=_kill("sshd"), **LOST, **SOON),
    Fault(name="SIGSTOP sshd, for good", act=_stop_forever("sshd"), **LOST, **SOON),
)


WORST = ("kill -9 worker", "kill -9 supervisor", "kill -9 node's init")
CASES = [
    *(pytest.param(one, "fake", marks=pytest.mark.worst if one.name in WORST else ()) for one in ENDING),
    *(pytest.param(one, "torchrun") for one in ENDING),
]


@pytest.mark.parametrize(("fault", "trainer"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_fault_of_one_node_ends_the_gang(lab: Lab, folder: Path, fault: Fault, trainer: str) -> None:
    def play() -> None:
        with scene(lab, folder, trainer) as it:
            it.timing = replace(it.timing, lost_after_s=fault.patience_s)
            it.launch()
            it.strike(lambda: fault.act(it))
            it.end()
            if fault.returns:
                bring_back(lab)
            patience = "" if fault.patience_s == LOST_AFTER_S else f" (lost_after_s {fault.patience_s:g})"
            it.conclude(
                fault.name + patience,
                state=fault.state,
                cause=fault.cause,
                culprit=fault.culprit,
                detected_within_s=fault.detected_within_s,
                points=fault.returns,
            )

    lab.inside(play)


def bring_back(lab: Lab) -> None:
    """Make the server reach node 1 again after any of the faults."""
    lab.heal(1)
    lab.signal(1, "sshd", signal.SIGCONT)
    if not lab.processes(1, "sshd"):
        lab.start_sshd(1)


@pytest.mark.parametrize(
    ("trainer", "stall_s"),
    [pytest.param("fake", STALL_S, marks=pytest.mark.worst), ("torchrun", TORCH_STALL_S)],
    ids=("fake", "torchrun"),
)
def test_a_worker_that_someone_stopped_is_named_as_what_the_others_wait_for(
    lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, stall_s: int
) -> None:
    def play() -> None:
        with scene(lab, folder, trainer) as it:
            change_spec(monkeypatch, stall_s=stall_s)
            it.launch()
            it.strike(lambda: lab.signal(1, WORKER[trainer], signal.SIGSTOP))
            wait_for(lambda: EventKind.NODE_STUCK in {event.kind for event in it.events()}, 60)
            it.end(stall_s + 120)
            it.conclude(
                f"SIGSTOP worker (stall_s {stall_s})",
                state=RunState.FAILED,
                cause="process_stuck",
                culprit=1,
                detected_within_s=stall_s + 50,
            )

    lab.inside(play)


@pytest.mark.parametrize(("trainer", "stall_s"), [("fake", STALL_S), ("torchrun", TORCH_STALL_S)], ids=TRAINERS)
def test_a_fabric_that_loses_one_direction_between_two_nodes_stalls_all_and_is_ended(
    lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, stall_s: int
) -> None:
    """No node can show this fault: every rank waits. The hang is reported with the position of each rank."""

    def play() -> None:
        with scene(lab, folder, trainer) as it:
            change_spec(monkeypatch, stall_s=stall_s)
            it.launch()
            it.strike(lambda: lab.silence(1, towards=0))
            it.end()
            lab.heal(1)
            cause = it.controller.snapshot(it.run).cause
            assert cause is not None
            blamed = lab.addresses.index(str(cause.node))
            it.conclude(
                f"fabric link down one way (stall_s {stall_s})",
                state=RunState.FAILED,
                cause="stalled",
                culprit=blamed,
                detected_within_s=stall_s + 50,
            )

    lab.inside(play)


@pytest.mark.parametrize(("trainer", "stall_s"), [("fake", STALL_S), ("torchrun", TORCH_STALL_S)], ids=TRAINERS)
def test_two_nodes_of_one_rank_stall_and_are_ended(
    lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, stall_s: int
) -> None:
    """Ranks follow the order of the hosts, so only a changed file on a node can cause this."""

    def play() -> None:
        with scene(lab, folder, trainer) as it:
            change_spec(monkeypatch, rank=1, argv={"--node_rank": "0"}, stall_s=stall_s)
            it.began = time.time()
            it.launch(after=0)
            it.end()
            cause = it.controller.snapshot(it.run).cause
            assert cause is not None
            it.conclude(
                f"rank collision, forced (stall_s {stall_s})",
                state=RunState.FAILED,
                cause="stalled",
                culprit=lab.addresses.index(str(cause.node)),
                detected_within_s=stall_s + 50,
                points=False,
            )

    lab.inside(play)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_master_port_that_is_taken_after_preflight_is_named(
    lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    real = launch.start_all

    def take_the_port(attempt: launch.Attempt, *rest: Any) -> None:
        port = str(attempt.placement.master_port)
        thief = lab.on_node(0, sys.executable, "-S", "-c", THIEF, port)
        assert thief.stdout is not None
        thief.stdout.readline()
        real(attempt, *rest)

    def play() -> None:
        with scene(lab, folder, trainer) as it:
            monkeypatch.setattr(launch, "start_all", take_the_port)
            it.began = time.time()
            it.launch(after=0)
            it.end()
            it.conclude(
                "master port taken",
                state=RunState.FAILED,
                cause="master_port_taken",
                culprit=0,
                detected_within_s=90,
            )

    lab.inside(play)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_full_disk_is_named_though_nothing_can_be_written_any_more(lab: Lab, folder: Path, trainer: str) -> None:
    def play() -> None:
        with scene(lab, folder, trainer, run_root="/run/local/mb") as it:
            it.launch()
            it.strike(lambda: fill(lab.disk(1) / "filler"))
            it.end()
            (lab.disk(1) / "filler").unlink()
            it.conclude("disk full", state=RunState.FAILED, cause="disk_full", culprit=1, detected_within_s=60)

    lab.inside(play)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_changed_host_key_ends_the_trust_in_a_node_that_must_be_reached_again(
    lab: Lab, folder: Path, trainer: str
) -> None:
    def play() -> None:
        with scene(lab, folder, trainer) as it:
            it.launch()

            def change() -> None:
                lab.signal(1, "sshd", signal.SIGKILL)
                lab.start_sshd(1, key="other")

            it.strike(change)
            it.end()
            events = next(event for event in it.events() if event.kind is EventKind.NODE_UNREACHABLE)
            assert events.detail["problem"]["code"] == "host_key_changed"
            lab.signal(1, "sshd", signal.SIGKILL)
            lab.start_sshd(1)
            it.conclude("host key changed", **LOST, culprit=1, detected_within_s=90)

    lab.inside(play)


def test_a_changed_host_key_stops_a_launch_before_anything_is_done(lab: Lab, folder: Path) -> None:
    def play() -> None:
        with scene(lab, folder) as it:
            lab.signal(1, "sshd", signal.SIGKILL)
            lab.start_sshd(1, key="other")
            with pytest.raises(ProblemsError) as caught:
                it.launch()
            assert [(problem.code, problem.node) for problem in caught.value.problems] == [
                ("host_key_changed", lab.addresses[1])
            ]
            assert it.controller.runs() == []

    lab.inside(play)


@pytest.mark.parametrize(
    ("trainer", "cause"), [("fake", "training_failed"), ("torchrun", "wrong_interface")], ids=TRAINERS
)
def test_a_wrong_interface_is_named_with_its_node(
    lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, cause: str
) -> None:
    """Preflight finds each node's interface, so only a changed file on a node can make gloo use another one.

    The stand-in writes in its own words that it cannot reach the others.
    """

    def play() -> None:
        with scene(lab, folder, trainer) as it:
            for words in ("link add docker0 type bridge", "addr add 10.9.0.1/24 dev docker0", "link set docker0 up"):
                assert lab.on_node(1, "ip", *words.split()).wait() == 0
            change_spec(monkeypatch, rank=1, environment={"GLOO_SOCKET_IFNAME": "docker0"}, stall_s=60)
            it.began = time.time()
            it.launch(after=0)
            it.end(200)
            it.conclude(
                "wrong interface, forced",
                state=RunState.FAILED,
                cause=cause,
                culprit=1,
                detected_within_s=90,
            )

    lab.inside(play)


def test_processes_that_no_signal_ends_are_reported_and_cleared_once_they_can_be(lab: Lab, folder: Path) -> None:
    """A frozen process behaves like one in a driver: SIGKILL waits until it is thawed."""
    freezer = Path(f"/sys/fs/cgroup/freezer/megaboard-chaos-{os.getpid()}")
    try:
        freezer.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer (cgroup 1) here: {error}")

    def play() -> None:
        with scene(lab, folder) as it:
            it.timing = replace(it.timing, stop_deadline_s=20.0)
            it.launch()
            (worker,) = lab.processes(1, "run.py worker")
            (freezer / "tasks").write_text(str(worker))
            (freezer / "freezer.state").write_text("FROZEN")
            it.strike(lambda: it.controller.stop(it.run))
            it.end()
            shown = it.controller.snapshot(it.run)
            assert [left[2] for left in (shown.nodes[1].stop or {})["left"]] == ["D"]
            assert shown.nodes[1].state == "lost"
            (freezer / "freezer.state").write_text("THAWED")
            wait_for(lambda: it.controller.snapshot(it.run).nodes[1].state != "lost", 90)
            it.conclude("D state at stop, over after the end", state=RunState.LOST, cause="processes_left", culprit=1)

    try:
        lab.inside(play)
    finally:
        (freezer / "freezer.state").write_text("THAWED")
        lab.__exit__()
        wait_for(lambda: not (freezer / "tasks").read_text(), 30)
        freezer.rmdir()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def change_spec(
    monkeypatch: pytest.MonkeyPatch,
    *,
    rank: int | None = None,
    argv: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    **more: object,
) -> None:
    """Change what the supervisors of all nodes (`more`) and that of one node are told to run."""
    real = launch.make_spec

    def changed(attempt: launch.Attempt, of: int) -> dict[str, Any]:
        spec: dict[str, Any] = {**real(attempt, of), **more}
        if of == rank:
            words = list(spec["argv"])
            for option, value in (argv or {}).items():
                words[words.index(option) + 1] = value
            spec |= {"argv": words, "environment": {**spec["environment"], **(environment or {})}}
        return spec

    monkeypatch.setattr(launch, "make_spec", changed)


THIEF = """
import socket, sys, time
taken = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("taken", flush=True)
time.sleep(600)
"""
