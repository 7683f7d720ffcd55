"""The server is killed at every step of launch, run and stop. The next one continues from there and harms nothing."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from backend.job.mapping import to_mapping, with_values
from backend.runs.states import EventKind, RunState
from backend.runs.supervise import restart
from backend.runs.supervise.gang_rules import Timing
from tests.chaos.lab import Lab
from tests.chaos.scene import Scene, scene
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos]

ENDS = (EventKind.FINISHED, EventKind.STOPPED, EventKind.FAILED, EventKind.LOST)


@dataclass(frozen=True, kw_only=True)
class Death:
    """The server dies as soon as the first event of `kind` is recorded, or just before."""

    kind: EventKind
    before: bool = False
    steps: int = 60
    act: str = ""
    """What is done to the run: "stop", "save", "kill" of a worker, "resume" after it, "cut" of a node."""
    restarts: int = 0
    refused: bool = False
    """The first try to start the gang again is: its model is not there."""
    state: RunState
    cause: str | None = None
    culprit: int | None = None

    @property
    def name(self) -> str:
        return f"server killed {'before' if self.before else 'at'} {self.kind.value}"


CUT = {"state": RunState.FAILED, "cause": "launch_interrupted", "steps": 100_000}
STOP = {"state": RunState.STOPPED, "act": "stop", "steps": 100_000}
FAIL = {"state": RunState.FAILED, "cause": "killed", "culprit": 1, "act": "kill", "steps": 100_000}
LOSE = {"state": RunState.LOST, "cause": "node_lost", "culprit": 1, "act": "cut", "steps": 100_000}
AGAIN = {"state": RunState.FINISHED, "act": "kill", "steps": 110, "restarts": 1}
DEATHS = (
    Death(kind=EventKind.CREATED, **CUT),
    Death(kind=EventKind.PREFLIGHT, **CUT),
    Death(kind=EventKind.STARTING, **CUT),
    Death(kind=EventKind.NODE_STARTING, **CUT),
    Death(kind=EventKind.NODE_STARTED, before=True, **CUT),
    Death(kind=EventKind.NODE_STARTED, **CUT),
    Death(kind=EventKind.STARTED, before=True, **CUT),
    Death(kind=EventKind.STARTED, state=RunState.FINISHED),
    Death(kind=EventKind.NODE_EXITED, before=True, state=RunState.FINISHED),
    Death(kind=EventKind.NODE_EXITED, state=RunState.FINISHED),
    Death(kind=EventKind.FINISHED, state=RunState.FINISHED),
    Death(kind=EventKind.STOP_REQUESTED, **STOP),
    Death(kind=EventKind.NODE_STOPPING, **STOP),
    Death(kind=EventKind.NODE_STOPPED, before=True, **STOP),
    Death(kind=EventKind.NODE_STOPPED, **STOP),
    Death(kind=EventKind.STOPPED, **STOP),
    Death(kind=EventKind.SAVE_ASKED, **{**STOP, "act": "save"}),
    Death(kind=EventKind.FAILING, **FAIL),
    Death(kind=EventKind.FAILED, **FAIL),
    Death(kind=EventKind.LOSING, **LOSE),
    Death(kind=EventKind.LOST, **LOSE),
    Death(kind=EventKind.RESTARTING, **AGAIN),
    Death(kind=EventKind.WAITING, refused=True, **AGAIN),
    Death(kind=EventKind.RESUMED, **{**CUT, "act": "resume"}),
)

PATIENCE = {"grace_s": 3.0, "lost_after_s": 5.0}
RESTART_WAIT_S = 1.0

WORST = EventKind.NODE_STARTED
CASES = [pytest.param(one, marks=pytest.mark.worst if one.kind is WORST and one.before else ()) for one in DEATHS]


@pytest.mark.parametrize("death", CASES, ids=lambda death: death.name)
def test_the_next_server_goes_on_where_the_killed_one_was(
    lab: Lab, folder: Path, death: Death, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "FIRST_WAIT_S", RESTART_WAIT_S)

    def play() -> None:
        with scene(lab, folder) as it:
            it.timing = Timing(**PATIENCE)
            server = start(it, folder, death)
            it.open(watch=False)
            if death.act in ("kill", "resume", "cut"):
                wait_for(lambda: took_steps(it))
                harm(it, folder, death)
            assert server.wait(100) == -signal.SIGKILL
            it.began = time.time()
            (line,) = it.controller.runs()
            it.run = line.id
            if death.refused:
                (folder / "away").rename(folder / "model")
            it.controller.start()
            it.end()
            if death.act == "cut":
                lab.start_sshd(1)
            it.conclude(death.name, state=death.state, cause=death.cause, culprit=death.culprit)
            kinds = [event.kind for event in it.events()]
            assert sum(kind in ENDS for kind in kinds) == 1 + kinds.count(EventKind.RESUMED), "every end is told once"
            assert kinds.count(EventKind.RESTARTING) == death.restarts, "never more often than allowed"
            assert len(it.attempts()) == (0 if EventKind.STARTING not in kinds else 1 + death.restarts)

    lab.inside(play)


def harm(it: Scene, folder: Path, death: Death) -> None:
    if death.refused:
        (folder / "model").rename(folder / "away")
    if death.act == "cut":
        it.lab.signal(1, "sshd", signal.SIGKILL)  # It is unreachable at once, and continues to train.
    else:
        it.lab.signal(1, "run.py worker", signal.SIGKILL)


def took_steps(it: Scene) -> bool:
    runs = it.controller.runs()
    it.run = runs[0].id if runs else ""
    return bool(runs) and len(it.stored(1)) >= 3


def start(it: Scene, folder: Path, death: Death) -> "subprocess.Popen[bytes]":
    variables = {"TRAINER_STEPS": str(death.steps), "TRAINER_STEP_S": "0.05"}
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(dict(to_mapping(with_values(it.job, {"environment": variables})))))
    plan = {**vars(death), "kind": death.kind.value, "patience": PATIENCE, "restart_wait_s": RESTART_WAIT_S}
    arguments = [it.home, job_file, json.dumps(plan)]
    return subprocess.Popen([sys.executable, "-c", SERVER, *map(str, arguments)])


SERVER = """
import json, os, sys, time
from pathlib import Path
from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.mapping import parse_job
from backend.runs.store import run_store
from backend.runs.supervise import restart
from backend.runs.controller import Controller
from backend.runs.supervise.gang_rules import Timing
from backend.runs.store.store import Store

home, job_file, plan = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
kind, before, act = plan["kind"], plan["before"], plan["act"]
restart.FIRST_WAIT_S = plan["restart_wait_s"]
append, write, reached = run_store.append, Store.write, []

def die():
    os.kill(os.getpid(), 9)

def dying_append(connection, run, what, **more):
    if what.value == kind and before:
        die()
    done = append(connection, run, what, **more)
    if what.value == kind:
        reached.append(what)
    return done

def dying_write(store, change):
    result = write(store, change)
    if reached:
        die()
    return result

run_store.append, Store.write = dying_append, dying_write
job, _ = parse_job(json.loads(job_file.read_text()))
timing = Timing(**plan["patience"])
controller = Controller(home, Store(home / "megaboard.db"), KnownHosts(home / "known_hosts"), timing=timing)
controller.start()
run = controller.launch(job, restarts=plan["restarts"])
while act in ("stop", "save") and len(controller.points(run)) < 3:
    time.sleep(0.05)
if act in ("stop", "save"):
    controller.stop(run, save=act == "save")
if act == "resume":
    controller.wait(run, 60)
    controller.resume(run, checkpoint=0)
time.sleep(120)
"""
