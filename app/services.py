"""The state of one server: the home folder, the store, the controller of runs and the draft of a job.

Pages and commands share it. No other module of app/ holds state.
"""

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from app.home import store_path, with_readable_cluster
from app.monitor.exports import Exports
from app.monitor.resuming import Resuming
from app.monitor.storage import StorageView
from app.monitor.watch import RunCache
from app.newest import Newest
from app.web.audit import Audit
from app.wizard.last_benchmark import LastBenchmark
from app.wizard.launch_session import LaunchSession
from backend.cluster.ssh.host_keys import HostKey, KnownHosts
from backend.job.job import Job
from backend.job.job_secrets import without_secrets
from backend.job.mapping import MAXIMUM_TEXT, dump_mapping, load_mapping
from backend.job.problems import Problem, ProblemsError
from backend.runs.controller import Controller
from backend.runs.database import Database
from backend.runs.records import StartCheckpoint
from backend.runs.retention import Retention

if TYPE_CHECKING:
    from backend.planning import Strategy

FIRST_DRAFT: Mapping[str, object] = {
    "version": 1,
    "name": "my-run",
    "cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8},
    "model": {"preset": "qwen3-vl-8b"},
    "training": {"gradient_accumulation_steps": 4},
    "parallel": {"pipeline": 2},
}
"""The first draft of a new home folder: four nodes with eight H100 each.

Its plan is nearly as fast as the recommended one, and its sizes divide the layers of most models. TP is 1, because
LLaMA-Factory's Megatron trains vision parts incorrectly with more.
"""


class DraftStore(Protocol):
    """The store of the draft, as text."""

    def get_draft(self) -> str | None: ...
    def set_draft(self, text: str) -> None: ...
    def get_draft_source(self) -> str | None: ...
    def set_draft_source(self, text: str | None) -> None: ...


class Draft:
    """The job that users edit. A server has one draft. The store keeps it over a reload or a restart.

    The draft is a mapping like the job file, not a Job, because it may be wrong or incomplete at any time. Values that
    look like secrets stay in memory. `source` is the checkpoint with which its launch begins. Thread-safe.
    """

    def __init__(self, store: DraftStore, home: Path) -> None:
        self._store = store
        self._home = home
        self._lock = threading.Lock()
        self._mapping = _read(store.get_draft())
        self._version = time.time_ns() // 1000
        self._stamp = 0
        self.edit_lock = threading.Lock()
        """Held by an edit that reads the draft before it changes it."""
        self._source = _read_source(store.get_draft_source())

    def job_mapping(self) -> dict[str, object]:
        """Return a copy of the job file's mapping. `cluster: NAME` is not resolved."""
        with self._lock:
            return copy.deepcopy(self._mapping)

    @property
    def version(self) -> int:
        """A number that grows with every change, also across restarts, and is exact in JavaScript."""
        with self._lock:
            return self._version

    def new_stamp(self) -> int:
        """Return a number that grows with every call, also across restarts, and is exact in JavaScript."""
        with self._lock:
            self._stamp = max(self._stamp + 1, time.time_ns() // 1000)
            return self._stamp

    def edit(self, path: str, value: object) -> None:
        """Set one dotted path, for example `parallel.tensor`. Missing mappings are added."""
        self.edit_all({path: value})

    def edit_all(self, edits: Mapping[str, object]) -> None:
        """Set several paths as one change. If a named cluster cannot be read, the new values replace it.

        Raises ProblemsError if the job would exceed the size limit of a job file.
        """
        with self._lock:
            mapping = copy.deepcopy(self._mapping)
            if any(path.startswith("cluster.") for path in edits):
                mapping = with_readable_cluster(mapping, self._home)
            for path, value in edits.items():
                _set(mapping, path.split("."), copy.deepcopy(value))
            self._store_mapping(mapping)

    def replace(self, mapping: Mapping[str, object]) -> None:
        """Replace the whole job. Raises ProblemsError if it exceeds the size limit of a job file."""
        with self._lock:
            self._store_mapping(copy.deepcopy(dict(mapping)))

    @property
    def source(self) -> StartCheckpoint | None:
        """The checkpoint with which a launch of the draft begins. None: no checkpoint."""
        with self._lock:
            return self._source

    def set_source(self, source: StartCheckpoint | None) -> None:
        """Set the checkpoint with which a launch begins."""
        with self._lock:
            self._store.set_draft_source(source.to_json() if source else None)
            self._source = source

    def _store_mapping(self, mapping: dict[str, object]) -> None:
        mapping = _writable(mapping)
        if mapping == self._mapping:
            return
        text = dump_mapping(mapping)
        if len(text) > MAXIMUM_TEXT:
            raise ProblemsError([Problem(code="file_too_large", values={"limit": MAXIMUM_TEXT})])
        stored = without_secrets(mapping)
        self._store.set_draft(text if stored == mapping else dump_mapping(stored))
        self._mapping = mapping
        self._version += 1


class HostKeyAnswer(Protocol):
    """An answer of the nodes. It may contain host keys that the user must confirm."""

    @property
    def unknown_host_keys(self) -> tuple[HostKey, ...]: ...


A = TypeVar("A", bound=HostKeyAnswer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """The state of one server, for every page and command."""

    home: Path
    database: Database
    controller: Controller
    draft: Draft
    audit: Audit
    retention: Retention
    clock: Callable[[], float]
    launch_session: LaunchSession
    last_benchmark: LastBenchmark
    newest_strategies: "Newest[Job, tuple[Strategy, ...]]"
    """The strategies of the newest draft, for a repeated request or the other language."""
    run_cache: RunCache
    exports: Exports
    resuming: Resuming
    storage: StorageView
    recipients: tuple[str, ...] = ()
    """Names of the addresses that receive messages about runs."""
    demo: Mapping[str, Any] | None = None
    """Mapping of the job that the demo offers as a recipe. None: the server is not a demo."""

    @classmethod
    def open(
        cls,
        home: Path,
        clock: Callable[[], float] = time.time,
        *,
        recipients: Iterable[str] = (),
        demo: Mapping[str, Any] | None = None,
    ) -> "Services":
        """Open the store and the known hosts of a home folder. No thread runs before `controller.start()`."""
        database = Database.open(store_path(home))
        store = database.store
        audit = Audit(home, clock)
        controller = Controller(home, store, known_hosts_of(home), clock=clock, audit=audit.record)
        retention = Retention(home, store, clock=clock, audit=audit.record)
        draft = Draft(store, home)
        return cls(
            home=home,
            database=database,
            controller=controller,
            draft=draft,
            audit=audit,
            retention=retention,
            clock=clock,
            launch_session=LaunchSession(controller, clock),
            last_benchmark=LastBenchmark(),
            newest_strategies=Newest(),
            run_cache=RunCache(controller, database, clock),
            exports=Exports(controller),
            resuming=Resuming(controller),
            storage=StorageView(retention, database, clock),
            recipients=tuple(recipients),
            demo=demo,
        )

    def close(self) -> None:
        """Close the connections and the store. Runs continue."""
        self.controller.close()
        self.database.close()


def ask_nodes(controller: Controller, request: Callable[[], A], confirmed: Collection[str]) -> A:
    """Return the answer of the nodes. Accepts host keys with confirmed fingerprints, then repeats the request."""
    answer = request()
    keys = [key for key in answer.unknown_host_keys if key.fingerprint in confirmed]
    if not keys:
        return answer
    controller.accept_host_keys(keys)
    return request()


def known_hosts_of(home: Path) -> KnownHosts:
    """Return the host keys of this user's ssh, and the keys that were confirmed in this home folder."""
    return KnownHosts(home / "known_hosts", Path("~/.ssh/known_hosts").expanduser())


def _read(text: str | None) -> dict[str, object]:
    mapping, problem = load_mapping(text) if text else (FIRST_DRAFT, None)
    return copy.deepcopy(dict(FIRST_DRAFT if problem else mapping))


def _read_source(text: str | None) -> StartCheckpoint | None:
    """Return None for a text of another version that cannot be read."""
    try:
        return StartCheckpoint.from_json(text) if text else None
    except (ValueError, TypeError, KeyError):
        return None


def _writable(value: Any) -> Any:
    """Return the value with question marks for lone surrogates. Browsers may send them, but YAML cannot read them."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list) else value


def _set(mapping: dict[str, object], path: list[str], value: object) -> None:
    *parents, last = path
    for parent in parents:
        inner = mapping.get(parent)
        if not isinstance(inner, dict):
            inner = mapping[parent] = {}
        mapping = inner
    mapping[last] = value
