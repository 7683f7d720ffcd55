"""Random histories with real processes and a real network. The invariants are those of the simulated nodes."""

import contextlib
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backend.job.problems import ProblemsError
from backend.runs.states import EventKind, RunState
from tests.chaos.lab import Lab
from tests.chaos.scene import NODES, Scene, scene
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos]

HISTORIES = 10
ACTS = 6
ENDS = (EventKind.FINISHED, EventKind.STOPPED, EventKind.FAILED, EventKind.LOST)


class History:
    """Random acts on a running gang, chosen by a seed, and their record."""

    def __init__(self, it: Scene, seed: int) -> None:
        self.it = it
        self.chance = random.Random(seed)
        self.told: list[str] = []
        self.struck: set[int] = set()
        self.wished = False

    def act(self) -> None:
        rank = self.chance.randrange(NODES)
        act = self.chance.choice((self.kill, self.cut, self.heal, self.heal, self.freeze, self.restart, self.stop))
        self.told.append(f"{act.__name__} {rank}")
        act(rank)
        time.sleep(self.chance.choice((0.2, 2.0, 6.0)))  # The time between two acts is part of the history.

    def kill(self, rank: int) -> None:
        what = self.chance.choice(("run.py worker", "torch.distributed.run", "supervisor.py start"))
        self.told[-1] += f" {what}"
        if self.it.lab.signal(rank, what, signal.SIGKILL):
            self.struck.add(rank)

    def cut(self, rank: int) -> None:
        lab, lose = self.it.lab, self.chance.choice(("both ways", "to the node", "from the node"))
        self.told[-1] += f" {lose}"
        self.struck.add(rank)
        ways: dict[str, Callable[[int], object]] = {"to the node": lab.deafen, "from the node": lab.silence}
        ways.get(lose, lambda rank: lab.set_link(rank, "down"))(rank)

    def freeze(self, rank: int) -> None:
        self.struck.add(rank)
        self.it.lab.signal(rank, "sshd", signal.SIGSTOP)

    def heal(self, rank: int) -> None:
        self.it.lab.heal(rank)
        self.it.lab.signal(rank, "sshd", signal.SIGCONT)

    def restart(self, _: int) -> None:
        controller, store = self.it.opened.pop()
        controller.close()
        store.close()
        self.it.open()

    def stop(self, _: int) -> None:
        if self.chance.random() < 0.5:
            return
        with contextlib.suppress(ProblemsError):  # It has already ended.
            self.it.controller.stop(self.it.run, save=self.chance.random() < 0.5)
            self.wished = True


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_happens_nothing_is_left_and_no_point_is_lost(lab: Lab, folder: Path, seed: int) -> None:
    def play() -> None:
        with scene(lab, folder) as it:
            it.timing = replace(it.timing, lost_after_s=5.0, stop_deadline_s=30.0, save_deadline_s=10.0)
            it.launch()
            it.began = time.time()
            history = History(it, seed)
            for _ in range(ACTS):
                history.act()
            for rank in range(NODES):
                history.heal(rank)
            with contextlib.suppress(ProblemsError):
                it.controller.stop(it.run)
                history.wished = True
            state = it.end()
            wait_for(lambda: not it.left())
            cause = it.controller.snapshot(it.run).cause
            print(seed, history.told, state, cause)
            assert sum(event.kind in ENDS for event in it.events()) == 1, history.told
            assert history.wished or state in (RunState.FAILED, RunState.LOST), history.told
            struck = {lab.addresses[rank] for rank in history.struck}
            assert cause is None or len(struck) != 1 or cause.node in struck, (history.told, cause)
            culprit = lab.addresses.index(cause.node) if cause and cause.node else None
            code = cause.code if cause else None
            it.conclude(f"history of seed {seed}", state=state, cause=code, culprit=culprit)

    lab.inside(play)
