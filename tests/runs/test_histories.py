"""Random histories of launches, restarts, resumes, stops, deaths and cuts; what must hold after each of them.

The invariants are those that matter to whoever pays for the GPUs: nothing is left running, one attempt at a time holds
a node, what the page says is what the nodes are, every step arrives exactly once, the gang goes on from a whole
checkpoint and never more often than allowed, a stop is a stop, and the right node is blamed.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.cluster.inventory.software import NodeFacts
from backend.engines import CheckedJob
from backend.job.problems import ProblemsError
from backend.runs.collect.log_text import readable
from backend.runs.launch.accepted_warnings import to_stored
from backend.runs.launch.preflight import PreflightReport
from backend.runs.records import Event, problem_from_json
from backend.runs.states import EventKind, RunState, fold
from backend.runs.store import attempts, metrics, queue_order, run_store
from backend.runs.store.metrics import FileKey
from backend.runs.store.store import Store
from backend.runs.store.transitions import LaunchRequest
from backend.runs.supervise.reaper import unproved_nodes
from backend.runs.view.snapshot import snapshot
from tests.cluster.jobs import make_job
from tests.runs.by_hand import Server, ServerDied
from tests.runs.simulated import Cluster

pytestmark = [pytest.mark.e2e]

NODES = 3
STEPS = 120
"""A minute of training."""
HISTORIES = 120
SETTLED_S = 1200
"""Within which the page says what the nodes are, once everything is mended: runs may yet have to wait, train, stop."""
TOLD_S = 60
"""Within which a lost node is; half of it is patience, some is the pause between two tries to reach it."""
TURN_S = 2
"""Between two looks of the server."""
OUTAGE_S = 20
"""Shorter than what makes a lost node."""
BETWEEN_S = 8
"""From the death of a worker to the midst of the wait for a restart."""
RANKS = st.integers(0, NODES - 1)
THEN_S = st.sampled_from([0, 1, 5, OUTAGE_S, 45])
"""What goes by after an act."""
FALLS = st.one_of(st.none(), st.none(), RANKS)
"""A node that dies during the next preflight."""
JOB = make_job(nodes=NODES, cluster={"run_root": "/mb"})
FACTS = {
    rank: NodeFacts(home="/root", hostname=f"node{rank}", python="3.11", interface="eth0") for rank in range(NODES)
}
MEMORY = Path("/dev/shm")
ENDS = (EventKind.FINISHED, EventKind.STOPPED, EventKind.FAILED, EventKind.LOST)
BEGINNINGS = (EventKind.STOP_REQUESTED, EventKind.FAILING, EventKind.LOSING)
GOING_ON = (EventKind.PREFLIGHT, EventKind.STARTING, EventKind.STARTED, EventKind.RESTARTING, EventKind.WAITING)


class Histories(RuleBasedStateMachine):
    @initialize(restarts=st.sampled_from([0, 1, 3]))
    def open(self, restarts: int) -> None:
        self.folder = TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.home = Path(self.folder.name)
        self.cluster = Cluster(NODES, STEPS)
        self.store = Store(self.home / "megaboard.db")
        self.runs: list[str] = []
        self.struck: dict[tuple[str, int], set[int]] = {}
        """Ranks that something happened to while an attempt was under way; the server is not one of them."""
        self.stops: dict[str, int] = {}
        """How often a user asked for the end of a run."""
        self.falls: int | None = None
        self.preflight = mock.patch("backend.runs.launch.starter.run_preflight", self.run_preflight)
        self.preflight.start()
        self.serve()
        self.launch(restarts, None, None, 5)

    def serve(self) -> None:
        self.server = Server(self.home, self.store, self.cluster, self.second)

    def run_preflight(self, *_: object) -> PreflightReport:
        """Only the nodes' facts: what a preflight checks of them has tests of its own."""
        if self.falls is not None:
            self.cluster.power_off(self.falls)
            self.falls = None
        return PreflightReport(facts=FACTS, port=29500)

    def second(self) -> None:
        self.cluster.tick()
        if self.is_serving() and self.cluster.now % TURN_S == 0:
            self.server.turn()
            self.check_lost()

    def ask(self, act: Callable[[], object]) -> str | None:
        """Let a user ask for something; the code of the refusal or failure."""
        try:
            act()
        except ProblemsError as error:
            return error.problems[0].code
        except ServerDied:
            return "server_died"
        return None

    # Possible acts.

    @rule(
        restarts=st.sampled_from([0, 1, 3]),
        dies_after=st.one_of(st.none(), st.integers(0, 8)),
        falls=FALLS,
        then_s=THEN_S,
    )
    @precondition(lambda self: self.is_serving() and (len(self.runs) < 2 or not self.under_way()))
    def launch(self, restarts: int, dies_after: int | None, falls: int | None, then_s: int) -> None:
        run = f"run-{len(self.runs)}"
        with self.store.read() as connection:
            taken = bool(run_store.claims(connection))
        self.falls, self.server.store.left = (None, self.server.store.left) if taken else (falls, dies_after)
        asked = LaunchRequest(token=None, restarts=restarts, source=None, accepted=to_stored(None))
        refusal = self.ask(lambda: self.server.launch(CheckedJob(JOB), run, asked))
        with self.store.read() as connection:
            is_known = run_store.state_of(connection, run) is not None
        assert is_known or refusal in ("node_taken", "unreachable", "server_died"), refusal
        assert not (taken and is_known)
        if is_known:
            self.runs.append(run)
        self.pass_time(then_s)

    @rule(at_start=st.sampled_from([False, True]), waits=st.booleans(), falls=FALLS, then_s=THEN_S)
    @precondition(lambda self: self.is_serving() and self.resumable())
    def resume(self, at_start: bool, waits: bool, falls: int | None, then_s: int) -> None:
        self.falls = falls
        run, checkpoint = self.resumable()[-1], 0 if at_start else None
        self.ask(lambda: self.server.resume(run, checkpoint=checkpoint, waits=waits, accepted_warnings=None))
        self.pass_time(then_s)

    @rule(save=st.booleans(), between=st.booleans(), then_s=THEN_S)
    @precondition(lambda self: self.unfinished())
    def stop(self, save: bool, between: bool, then_s: int) -> None:
        """From the command line: it needs no server. `between`: in the wait for a restart, if there is to be one."""
        run = self.unfinished()[0]
        if between and self.cluster.kill_worker(0):
            self.note(0)
            self.pass_time(BETWEEN_S)
            if run not in self.unfinished():
                return
        self.stops[run] = self.stops.get(run, 0) + 1
        here = Server(self.home, self.store, self.cluster, self.second)
        assert self.ask(lambda: here.stop(run, save=save)) is None
        self.pass_time(then_s)

    @rule(rank=RANKS, kind=st.sampled_from(["kill_worker", "kill_supervisor", "wedge", "power_off"]), then_s=THEN_S)
    def strike(self, rank: int, kind: str, then_s: int) -> None:
        if getattr(self.cluster, kind)(rank) or kind == "power_off":  # Its last lines may not have been read yet.
            self.note(rank)
        self.pass_time(then_s)

    @rule(rank=RANKS, then_s=THEN_S)
    def cut(self, rank: int, then_s: int) -> None:
        self.note(rank)
        self.cluster.machines[rank].cut = True
        self.cluster.machines[rank].connect()
        self.pass_time(then_s)

    @rule(rank=RANKS, then_s=THEN_S)
    def heal(self, rank: int, then_s: int) -> None:
        """The cable is plugged in, the machine boots, the driver answers."""
        self.mend(rank)
        self.pass_time(then_s)

    @rule(writes=st.integers(0, 30), then_s=THEN_S)
    @precondition(lambda self: self.is_serving())
    def kill_server(self, writes: int, then_s: int) -> None:
        """Now, or when it records something after that."""
        self.server.store.left = writes
        self.pass_time(then_s)

    @rule(then_s=THEN_S)
    @precondition(lambda self: not self.is_serving())
    def restart_server(self, then_s: int) -> None:
        self.serve()
        self.pass_time(then_s)

    def mend(self, rank: int) -> None:
        machine = self.cluster.machines[rank]
        machine.cut, machine.powered, machine.away_s = False, True, 0
        machine.connect()
        self.cluster.free(rank)

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()

    # Invariants at any time.

    @invariant()
    def one_run_holds_a_node(self) -> None:
        for machine in self.cluster.machines:
            assert len({(part.run, part.attempt) for part in machine.parts.values() if part.alive}) <= 1

    @invariant()
    def one_attempt_of_a_run_lives(self) -> None:
        alive = [part for machine in self.cluster.machines for part in machine.parts.values() if part.alive]
        assert len({(part.run, part.attempt) for part in alive}) == len({part.run for part in alive})

    @invariant()
    def one_run_is_under_way(self) -> None:
        with self.store.read() as connection:
            holders = set(run_store.claims(connection).values())
        active = (RunState.PREFLIGHT, RunState.STARTING, RunState.RUNNING)
        assert {run for run, state in self.states().items() if state in active} <= holders
        assert len(holders) <= 1

    @invariant()
    def a_gang_goes_on_where_it_is_told(self) -> None:
        assert not self.cluster.disk.complaints

    def check_lost(self) -> None:
        """A node that is away while another one is there is told in time."""
        away = max(machine.away_s for machine in self.cluster.machines)
        there = max(machine.there_s for machine in self.cluster.machines)
        if min(away, there, TURN_S * self.server.turns) > TOLD_S:
            assert RunState.RUNNING not in self.states().values()

    def teardown(self) -> None:
        """Everything is mended, the server is back, and time goes by: then the page and the nodes say the same."""
        if not hasattr(self, "store"):
            return
        try:
            for rank in range(NODES):
                self.mend(rank)
            self.falls = None
            self.serve()
            for _ in range(SETTLED_S):
                self.second()
                if self.is_settled():
                    break
            for run in self.runs:
                self.check(run)
            assert self.cluster.processes() == 0
            assert not self.cluster.disk.complaints
        finally:
            self.preflight.stop()
            self.store.close()
            self.folder.cleanup()

    def is_settled(self) -> bool:
        with self.store.read() as connection:
            return not run_store.unfinished_runs(connection) and not unproved_nodes(connection, 0.0)

    def check(self, run: str) -> None:
        with self.store.read() as connection:
            shown = snapshot(connection, run, self.cluster.now)
            history = run_store.events(connection, run)
            trail = [point.step for point in metrics.trail(connection, run, shown.attempt, count=STEPS + 1)]
        kinds = [event.kind for event in history]
        assert shown.state.is_final, kinds
        assert sum(kind in ENDS for kind in kinds) == 1 + kinds.count(EventKind.RESUMED), kinds
        assert self.cluster.processes(run) == 0, "nothing is left"
        assert all(node.state in ("stopped", "finished", "failed") for node in shown.nodes), (shown.nodes, kinds)
        last = [self.check_attempt(run, attempt, kinds) for attempt in range(1, shown.attempt + 1)][-1:]
        assert trail == list(range(1, len(trail) + 1)), "no step is lost or doubled where an attempt went on"
        assert len(trail) >= (shown.checkpoint_step or 0)
        assert (shown.state is RunState.FINISHED) <= (last == [True])
        self.check_stops(run, history)
        self.check_restarts(history, shown.restarts_allowed)
        self.check_blame(run, history)

    def check_attempt(self, run: str, attempt: int, kinds: Sequence[EventKind]) -> bool:
        """Nothing is left of it and all that it wrote is stored, once; whether it trained to the end."""
        with self.store.read() as connection:
            records = attempts.nodes(connection, run, attempt)
            begun = attempts.checkpoint_step(connection, run, attempt)
            points = [p for p in metrics.points(connection, run, rank=None) if p.attempt == attempt]
            hostnames = attempts.hostnames(connection, run, attempt)
        assert hostnames == {rank: facts.hostname for rank, facts in FACTS.items()}
        is_whole = True
        for record in records:
            proof = record.stop if record.stop is not None else record.exit
            assert proof is not None, (run, record, kinds)
            assert not proof["left"], (run, record, kinds)
            files = self.cluster.machines[record.rank].node.files
            rows = files.get(f"{record.folder}/steps.rank{record.rank}.jsonl", b"").rpartition(b"\n")[0].splitlines()
            steps = [point.step for point in points if point.rank == record.rank]
            assert steps == [json.loads(line)["step"] for line in rows], kinds
            key = FileKey(run=run, attempt=attempt, rank=record.rank, file=f"rank{record.rank}.log")
            with self.store.read() as connection:
                log = metrics.log_tail(connection, key, size=1 << 20)[1]
            assert readable(log) == readable(files.get(f"{record.folder}/{key.file}", b"")), "every byte, once"
            is_whole = is_whole and (steps[-1:] or [begun]) == [STEPS]
        return is_whole

    def check_stops(self, run: str, history: Sequence[Event]) -> None:
        """Who asks for the end gets it, in a wait for a restart too, and nobody else does."""
        stopped = asked = 0
        for event in history:
            stopped = 0 if event.kind is EventKind.RESUMED else stopped + (event.kind is EventKind.STOP_REQUESTED)
            asked += event.kind is EventKind.STOP_REQUESTED
            assert not (stopped and event.kind in GOING_ON), [event.kind for event in history]
        assert asked <= self.stops.get(run, 0)

    def check_restarts(self, history: Sequence[Event], allowed: int) -> None:
        """Never more than allowed, since the launch or since a user resumed the run."""
        used = 0
        for event in history:
            used = 0 if event.kind is EventKind.RESUMED else used + (event.kind is EventKind.RESTARTING)
            assert used <= allowed

    def check_blame(self, run: str, history: Sequence[Event]) -> None:
        """Where one node alone was struck while the gang ran, and no user ended it, that node is blamed or nobody."""
        for index, event in enumerate(history):
            if event.kind not in (EventKind.RESTARTING, EventKind.FAILED, EventKind.LOST):
                continue
            began = next(i for i in reversed(range(index)) if history[i].kind in BEGINNINGS)
            state = fold(one.kind for one in history[:began])
            if history[began].kind is EventKind.STOP_REQUESTED or state is not RunState.RUNNING:
                continue
            cause = problem_from_json(event.detail["problem"])
            names = {queue_order.addresses_of(JOB)[rank] for rank in self.struck.get((run, event.attempt), ())}
            assert len(names) > 1 or {cause.node} == names, (cause, names)

    # helpers

    def is_serving(self) -> bool:
        return not self.server.is_dead

    def states(self) -> dict[str, RunState]:
        with self.store.read() as connection:
            found = {run: run_store.state_of(connection, run) for run in self.runs}
        return {run: state for run, state in found.items() if state is not None}

    def unfinished(self) -> list[str]:
        return [run for run, state in self.states().items() if not state.is_final]

    def under_way(self) -> list[str]:
        """Those that do not wait in the queue."""
        return [run for run, state in self.states().items() if not state.is_final and state is not RunState.QUEUED]

    def resumable(self) -> list[str]:
        return [run for run, state in self.states().items() if state.can_resume]

    def note(self, rank: int) -> None:
        for run in self.under_way():
            with self.store.read() as connection:
                attempt = attempts.newest(connection, run)
            self.struck.setdefault((run, attempt), set()).add(rank)


Histories.TestCase.settings = settings(
    max_examples=HISTORIES,
    stateful_step_count=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestHistories = Histories.TestCase
