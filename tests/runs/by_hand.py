"""A server without threads. Tests run its work themselves, and the server can die at any write."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.runs.connections import Connections
from backend.runs.rank_secrets import ApiKeys
from backend.runs.runner import Runner
from backend.runs.states import RunState
from backend.runs.store import run_store
from backend.runs.store.store import Store
from backend.runs.supervise.gang_rules import Timing
from backend.runs.supervise.watch import Watch
from tests.runs.simulated import Cluster

T = TypeVar("T")
TIMING = Timing(grace_s=1.0, save_deadline_s=40.0)


class ServerDied(Exception):
    """The server died in the middle of its work."""


class MortalStore:
    """The store of a server that dies after some more writes. Later writes are not recorded."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.path = store.path
        self.read = store.read
        self.left: int | None = None

    def write(self, change: Callable[[Any], T]) -> T:
        if self.left == 0:
            raise ServerDied
        self.left = None if self.left is None else self.left - 1
        return self._store.write(change)


class Server(Runner):
    """A server whose `turn` does the work of a second, and whose `pass_second` also moves the simulated cluster."""

    def __init__(self, home: Path, store: Store, cluster: Cluster, pass_second: Callable[[], None]) -> None:
        self.store = MortalStore(store)
        self.turns = 0
        self._pass_second = pass_second
        nodes = {machine.node.name: machine.node for machine in cluster.machines}
        connections = Connections(lambda host: nodes[host.address])
        clocks = {"clock": cluster, "monotonic": cluster}
        audit: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        accepted = AcceptedConfigurations()
        super().__init__(home, self.store, connections, accepted, audit=audit, keys=ApiKeys(), timing=TIMING, **clocks)  # type: ignore[arg-type]

    @property
    def is_dead(self) -> bool:
        return self.store.left == 0

    def turn(self) -> None:
        """Do all due work once."""
        self.turns += 1
        try:
            self._find_work()
            for run, watch in list(self._watches.items()):
                if isinstance(watch, Watch) and self._tick_gang(watch):
                    del self._watches[run]
            self._reaper.reap()
        except ServerDied:
            pass

    def _tick_gang(self, watch: Watch) -> bool:
        for poller in watch._pollers.values():
            if not poller.ended:
                poller.step()
        return watch._gang_monitor.tick()

    def _take_turns(self, only: str | None = None) -> None:
        super()._take_turns(only)
        for thread in list(self._starting.values()):
            thread.join()

    def _attach(self, run: str) -> Watch:
        watch = self._watches.get(run)
        if not isinstance(watch, Watch):
            watch = self._watches[run] = self._make_watch(run)  # type: ignore[assignment]
        return watch  # type: ignore[return-value]

    def _supervise(self, run: str, failure: BaseException | None) -> None:
        """Watch the run; after a failed launch, let time pass until the run is over, and raise the failure."""
        self._attach(run)
        for _ in range(round(TIMING.stop_deadline_s) if failure is not None else 0):
            if self.is_dead or self._is_over(run):
                break
            self._pass_second()
        if failure is not None:
            raise failure

    def _is_over(self, run: str) -> bool:
        with self.store.read() as connection:
            return (run_store.state_of(connection, run) or RunState.QUEUED).is_final
