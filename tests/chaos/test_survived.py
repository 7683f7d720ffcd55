"""Faults that a run must survive: it ends as without the fault, and no point is lost or doubled."""

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from backend.runs.states import EventKind, RunState
from tests.chaos.lab import SUBNET, Lab
from tests.chaos.proxy import SlicingProxy
from tests.chaos.scene import NODES, TRAINERS, Scene, scene
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos]

STEPS = 400
"""At 50 ms: the run outlives the fault."""


@dataclass(frozen=True, kw_only=True)
class Passing:
    """An event on node 1 that is over after `lasts_s`."""

    name: str
    act: Callable[[Scene], object]
    undo: Callable[[Scene], object]
    lasts_s: float


PASSING = (
    Passing(
        name="link down for 8 s",
        act=lambda it: it.lab.set_link(1, "down"),
        undo=lambda it: it.lab.set_link(1, "up"),
        lasts_s=8,
    ),
    Passing(
        name="SIGSTOP sshd for 20 s",
        act=lambda it: it.lab.signal(1, "sshd", signal.SIGSTOP),
        undo=lambda it: it.lab.signal(1, "sshd", signal.SIGCONT),
        lasts_s=20,
    ),
    Passing(
        name="kill -9 sshd, back after 5 s",
        act=lambda it: it.lab.signal(1, "sshd", signal.SIGKILL),
        undo=lambda it: it.lab.start_sshd(1),
        lasts_s=5,
    ),
)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("passing", PASSING, ids=lambda passing: passing.name)
def test_what_passes_harms_nothing(lab: Lab, folder: Path, passing: Passing, trainer: str) -> None:
    def play() -> None:
        with scene(lab, folder, trainer) as it:
            it.launch(steps=STEPS + round(20 * passing.lasts_s))
            it.strike(lambda: passing.act(it))
            time.sleep(passing.lasts_s)  # The duration of the fault is tested.
            passing.undo(it)
            it.end()
            it.conclude(passing.name, state=RunState.FINISHED)

    lab.inside(play)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_slow_line_that_cuts_everything_into_pieces(lab: Lab, folder: Path, trainer: str) -> None:
    def play() -> None:
        hosts = [
            {
                "address": f"{SUBNET}.254",
                "port": 2200 + rank,
                "user": "root",
                "identity_file": str(lab.identity_file),
                "fabric_address": lab.addresses[rank],
            }
            for rank in range(NODES)
        ]
        key = (lab.folder / "known_hosts").read_text().split(maxsplit=1)[1].splitlines()[0]
        with (lab.folder / "known_hosts").open("a") as file:
            file.writelines(f"[{SUBNET}.254]:{2200 + rank} {key}\n" for rank in range(NODES))
        with contextlib.ExitStack() as stack, scene(lab, folder, trainer, hosts=hosts) as it:
            for rank, address in enumerate(lab.addresses):
                proxy = SlicingProxy((f"{SUBNET}.254", 2200 + rank), (address, 22), seed=rank)
                stack.enter_context(proxy)
            it.began = time.time()
            it.launch(steps=200, environment={"TRAINER_LOG_BYTES": "3000"})
            it.end()
            it.conclude("slow and slicing TCP proxy", state=RunState.FINISHED)

    lab.inside(play)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("limit", ["MaxSessions 1", "MaxStartups 1"])
def test_a_node_whose_sshd_allows_one_thing_at_a_time(folder: Path, limit: str, trainer: str) -> None:
    """Two servers have their own connection to every node, and both connect at the same time."""
    (folder / "lab").mkdir()
    with Lab(folder / "lab", NODES, sshd=limit) as lab:

        def play() -> None:
            with scene(lab, folder, trainer) as it:
                it.open()
                it.open()
                it.began = time.time()
                it.launch(steps=100)
                it.end()
                it.conclude(limit, state=RunState.FINISHED)

        lab.inside(play)


def test_a_stop_through_a_node_that_allows_one_session(folder: Path) -> None:
    (folder / "lab").mkdir()
    with Lab(folder / "lab", NODES, sshd="MaxSessions 1") as lab:

        def play() -> None:
            with scene(lab, folder) as it:
                it.launch()
                it.strike(lambda: it.controller.stop(it.run))
                it.end()
                it.conclude("stop with MaxSessions 1", state=RunState.STOPPED)

        lab.inside(play)


def test_a_changed_host_key_is_no_concern_of_an_open_connection(lab: Lab, folder: Path) -> None:
    def play() -> None:
        with scene(lab, folder) as it:
            it.launch(steps=STEPS)
            it.strike(lambda: change_key(lab))
            it.end()
            it.conclude("host key changed, connection open", state=RunState.FINISHED)
            assert EventKind.NODE_UNREACHABLE not in {event.kind for event in it.events()}

    lab.inside(play)


def change_key(lab: Lab) -> None:
    """Start a new listener with another key. Sessions of the old one continue."""
    oldest = min(lab.processes(1, "sshd"))
    lab.kill(oldest)
    wait_for(lambda: oldest not in lab.processes(1, "sshd"))
    lab.start_sshd(1, key="other")
