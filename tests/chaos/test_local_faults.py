"""Faults of the server's own machine: the gang continues to train, and the server attaches to the run again."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from backend.runs.states import EventKind, RunState
from tests.chaos.lab import Lab
from tests.chaos.scene import TRAINERS, Scene, scene
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

LOST_AFTER_S = 10.0


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_server_whose_machine_refuses_to_send_to_a_node_does_not_call_it_lost(
    lab: Lab, folder: Path, trainer: str
) -> None:
    def play() -> None:
        with scene(lab, folder, trainer) as it:
            it.timing = replace(it.timing, lost_after_s=LOST_AFTER_S)
            it.launch()
            it.strike(lambda: lab.forbid(1))
            wait_for(lambda: _told(it, EventKind.NODE_UNSEEN) == ["local_network"])
            stored = len(it.stored(1))
            time.sleep(2 * LOST_AFTER_S)  # The fault lasts far longer than the limit of a lost node.
            assert it.controller.snapshot(it.run).state is RunState.RUNNING
            lab.allow(1)
            # The rows of a poll are stored before its report.
            wait_for(lambda: len(it.stored(1)) > stored and it.events()[-1].kind is EventKind.NODE_REACHABLE)
            it.controller.stop(it.run)
            it.end()
            it.conclude("the server's machine refuses to send", state=RunState.STOPPED)

    lab.inside(play)


def _told(it: Scene, kind: EventKind) -> list[str]:
    return [event.detail["problem"]["code"] for event in it.events() if event.kind is kind and event.rank == 1]
