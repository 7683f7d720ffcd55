"""Random histories of launches, stops, deaths, cuts and restarts of the server; what must hold after each of them.

The invariants are those that matter to whoever pays for the GPUs: nothing is left running, one run at a time holds a
node, what the page says is what the nodes are, every step arrives exactly once, and the right node is blamed.
"""

import json
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.cluster.group import GroupError
from backend.engines import render
from backend.job.mapping import dump_job
from backend.job.problems import Problem, ProblemsError
from backend.jobs import launch as launching
from backend.jobs import ledger, queued, series
from backend.jobs.collect import Collector
from backend.jobs.connections import Connections
from backend.jobs.diagnose import readable
from backend.jobs.follow import Follower
from backend.jobs.launchlock import LaunchLock
from backend.jobs.lead import Lead, Timing
from backend.jobs.records import problem_to_json
from backend.jobs.series import FileKey
from backend.jobs.snapshot import snapshot
from backend.jobs.states import EventKind, RunState
from backend.jobs.store import Store
from backend.jobs.sweep import Sweeper, debts
from tests.cluster.jobs import make_job
from tests.jobs.simulated import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODES = 3
STEPS = 120
"""A minute of training."""
HISTORIES = 300
SETTLED_S = 300
"""Within which the page says what the nodes are, once everything is mended: a run may yet have to be stopped."""
TOLD_S = 60
"""Within which a lost node is; half of it is patience, some is the pause between two tries to reach it."""
OUTAGE_S = 20
"""Shorter than what makes a lost node."""
RANKS = st.integers(0, NODES - 1)
THEN_S = st.sampled_from([0, 1, 5, OUTAGE_S, 45])
"""What goes by after an act."""
TIMING = Timing(save_deadline_s=40.0)
JOB = make_job(nodes=NODES, cluster={"run_root": "/mb"})
FACTS = {rank: SimpleNamespace(home="/root", interface="eth0", clock_offset_s=0.0) for rank in range(NODES)}
MEMORY = Path("/dev/shm")
ENDS = (EventKind.FINISHED, EventKind.STOPPED, EventKind.FAILED, EventKind.LOST)


class ServerDied(Exception):
    """In the middle of a launch."""


class Histories(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.folder = TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.home = Path(self.folder.name)
        self.cluster = Cluster(NODES, STEPS)
        self.store = Store(self.home / "megaboard.db")
        self.runs: list[str] = []
        self.struck: dict[str, set[int]] = {}
        """Ranks that something happened to while a run was under way; the server is not one of them."""
        self.excused: set[str] = set()
        """Runs whose end a user wished, or whose launch was cut short: nobody is blamed."""
        self.serve()
        self.launch(None, 5)

    # the server: what Runner and Watch do with threads, done by hand

    def serve(self) -> None:
        nodes = {machine.node.name: machine.node for machine in self.cluster.machines}
        clock = self.cluster
        connections = Connections(lambda host: nodes[host.address])
        self.sweeper = Sweeper(self.store, connections, grace_s=1, clock=clock, monotonic=clock)
        self.watched: dict[str, tuple[Lead, list[Follower]]] = {}
        self.serving = True
        self.served_s = 0

    def watch(self, run: str) -> tuple[Lead, list[Follower]]:
        if run not in self.watched:
            with self.store.read() as connection:
                records = ledger.nodes(connection, run, 1)
            nodes = [machine.node for machine in self.cluster.machines]
            followers = [
                Follower(
                    Collector(self.store, run, 1, record, [record.rank], self.cluster),
                    lambda rank=record.rank: nodes[rank],
                    lambda report: None,
                    monotonic=self.cluster,
                )
                for record in records
            ]
            lead = Lead(
                store=self.store,
                home=self.home,
                run=run,
                attempt=1,
                connect=lambda rank: nodes[rank],
                link=lambda rank: followers[rank].link(),
                clock=self.cluster,
                monotonic=self.cluster,
                timing=TIMING,
            )
            self.watched[run] = (lead, followers)
        return self.watched[run]

    def second(self) -> None:
        self.cluster.tick()
        self.served_s = self.served_s + 1 if self.serving else 0
        if not self.serving:
            return
        with self.store.read() as connection:
            unfinished = ledger.unfinished_runs(connection)
        for run in unfinished:
            lead, followers = self.watch(run)
            for follower in followers:
                if not follower.ended:
                    follower.step()
            lead.tick()
        self.sweeper.sweep()
        self.check_lost()

    # what may happen

    @rule(dies_after=st.one_of(st.none(), st.none(), st.integers(0, 2 * NODES)), then_s=THEN_S)
    @precondition(lambda self: self.serving)
    def launch(self, dies_after: int | None, then_s: int) -> None:
        run = f"run-{len(self.runs)}"
        if self.unfinished() is not None:
            with pytest.raises(ProblemsError, match="node_taken"):
                self.store.write(lambda connection: self._create(connection, run))
            return
        self.store.write(lambda connection: self._create(connection, run))
        self.runs.append(run)
        self.struck[run] = {m.rank for m in self.cluster.machines if not m.reachable or m.holder()}
        place = launching.make_place(JOB, run, 1, FACTS, 29500)  # type: ignore[arg-type]
        attempt = launching.Attempt(
            run=run,
            number=1,
            job=JOB,
            place=place,
            rendered=render(JOB, place),
            records=launching.make_records(JOB, place, FACTS),  # type: ignore[arg-type]
            grace_s=1,
        )
        told: list[EventKind] = []

        def tell(kind: EventKind, rank: int, detail: object) -> None:
            if dies_after is not None and len(told) >= dies_after:
                raise ServerDied
            told.append(kind)
            self.tell(run, kind, rank=rank)

        with LaunchLock(self.home, run):
            launching.record_attempt(self.store, attempt, self.cluster.now)
            try:
                nodes = {machine.rank: machine.node for machine in self.cluster.machines}
                launching.start_all(attempt, nodes, tell)
            except GroupError as error:
                self.excused.add(run)
                self.tell(run, EventKind.FAILING, problem=error.problems[0])
            except ServerDied:
                self.excused.add(run)
                self.serving = False
            else:
                self.tell(run, EventKind.STARTED)
        self.pass_time(then_s)

    def _create(self, connection: sqlite3.Connection, run: str) -> None:
        ledger.create_run(
            connection,
            run,
            name="job",
            engine=JOB.engine,
            job=dump_job(JOB),
            addresses=queued.addresses_of(JOB),
            time=self.cluster.now,
        )
        ledger.append(connection, run, EventKind.PREFLIGHT, time=self.cluster.now)

    @rule(save=st.booleans(), wished=st.sampled_from([True, False, False, False]), then_s=THEN_S)
    def stop(self, save: bool, wished: bool, then_s: int) -> None:
        run = self.unfinished() if wished else None
        if run is None:
            return
        self.excused.add(run)
        if not self.tell(run, EventKind.STOP_REQUESTED, save=save) and not save:
            self.tell(run, EventKind.STOP_FORCED)
        self.pass_time(then_s)

    @rule(rank=RANKS, kind=st.sampled_from(["kill_worker", "kill_supervisor", "wedge", "power_off"]), then_s=THEN_S)
    def strike(self, rank: int, kind: str, then_s: int) -> None:
        if getattr(self.cluster, kind)(rank):
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

    @rule(then_s=THEN_S)
    def kill_server(self, then_s: int) -> None:
        self.serving = False
        self.pass_time(then_s)

    @rule(then_s=THEN_S)
    def restart_server(self, then_s: int) -> None:
        self.serve()
        self.pass_time(then_s)

    def mend(self, rank: int) -> None:
        machine = self.cluster.machines[rank]
        machine.cut, machine.powered = False, True
        machine.connect()
        self.cluster.free(rank)

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()

    # what must hold at any time

    @invariant()
    def one_run_holds_a_node(self) -> None:
        for machine in self.cluster.machines:
            assert len({part.run for part in machine.parts.values() if part.alive}) <= 1

    @invariant()
    def one_run_is_under_way(self) -> None:
        with self.store.read() as connection:
            assert len(ledger.unfinished_runs(connection)) <= 1

    def check_lost(self) -> None:
        """A node that is away while another one is there is told in time."""
        away = max(machine.away_s for machine in self.cluster.machines)
        there = max(machine.there_s for machine in self.cluster.machines)
        if min(away, there, self.served_s) > TOLD_S:
            with self.store.read() as connection:
                states = [ledger.state_of(connection, run) for run in ledger.unfinished_runs(connection)]
            assert RunState.RUNNING not in states

    def teardown(self) -> None:
        """Everything is mended, the server is back, and time goes by: then the page and the nodes say the same."""
        if not hasattr(self, "store"):
            return
        try:
            for rank in range(NODES):
                self.mend(rank)
            self.serve()
            for _ in range(SETTLED_S):
                self.second()
                if self.is_settled():
                    break
            for run in self.runs:
                self.check(run)
            assert self.cluster.processes() == 0
        finally:
            self.store.close()
            self.folder.cleanup()

    def is_settled(self) -> bool:
        with self.store.read() as connection:
            return not ledger.unfinished_runs(connection) and not debts(connection, 0.0)

    def check(self, run: str) -> None:
        with self.store.read() as connection:
            shown = snapshot(connection, run, self.cluster.now)
            kinds = [event.kind for event in ledger.events(connection, run)]
            records = ledger.nodes(connection, run, 1)
            points = {rank: [p.step for p in series.points(connection, run, rank=rank)] for rank in range(NODES)}
            logs = {
                rank: series.log_tail(
                    connection, FileKey(run=run, attempt=1, rank=rank, file=f"rank{rank}.log"), size=1 << 20
                )[1]
                for rank in range(NODES)
            }
        assert shown.state.is_final, kinds
        assert sum(kind in ENDS for kind in kinds) == 1, kinds
        assert self.cluster.processes(run) == 0, "nothing is left"
        for record, node in zip(records, shown.nodes, strict=True):
            proof = record.stop if record.stop is not None else record.exit
            assert proof is not None, (run, record, kinds)
            assert not proof["left"], (run, record, kinds)
            assert node.state in ("stopped", "finished", "failed"), (node, kinds)
            files = self.cluster.machines[record.rank].node.files
            steps = files.get(f"{record.folder}/steps.rank{record.rank}.jsonl", b"").rpartition(b"\n")[0]
            assert points[record.rank] == [json.loads(line)["step"] for line in steps.splitlines()], kinds
            log = files.get(f"{record.folder}/rank{record.rank}.log", b"")
            assert readable(logs[record.rank]) == readable(log), "every byte of a log, once"
        whole = all(points[rank][-1:] == [STEPS] for rank in range(NODES))
        assert (shown.state is RunState.FINISHED) <= whole
        self.check_blame(run, shown.state, shown.cause)

    def check_blame(self, run: str, state: RunState, cause: Problem | None) -> None:
        """Where one node alone was struck, and no user had a hand in it, that node is blamed or nobody."""
        if run in self.excused:
            return
        assert state is not RunState.STOPPED, "nobody asked for it"
        if state in (RunState.FAILED, RunState.LOST):
            assert cause is not None
            names = {queued.addresses_of(JOB)[rank] for rank in self.struck[run]}
            assert len(names) > 1 or {cause.node} == names, (cause, names)

    # helpers

    def unfinished(self) -> str | None:
        with self.store.read() as connection:
            return next(iter(ledger.unfinished_runs(connection)), None)

    def note(self, rank: int) -> None:
        run = self.unfinished()
        if run is not None:
            self.struck[run].add(rank)

    def tell(
        self, run: str, kind: EventKind, rank: int | None = None, problem: Problem | None = None, **detail: object
    ) -> bool:
        values = detail | ({"problem": problem_to_json(problem)} if problem else {})
        return self.store.write(lambda c: ledger.append(c, run, kind, time=self.cluster.now, rank=rank, detail=values))


Histories.TestCase.settings = settings(
    max_examples=HISTORIES,
    stateful_step_count=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestHistories = Histories.TestCase
