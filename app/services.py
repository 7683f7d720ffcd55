"""What the page's parts share: the home folder, the store, the controller of runs and the draft of a job."""

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
from backend.engines.checks import without_secrets
from backend.job.job import Job
from backend.job.mapping import MAXIMUM_TEXT, dump_mapping, load_mapping
from backend.job.problems import Problem, ProblemsError
from backend.runs.controller import Controller
from backend.runs.database import Database
from backend.runs.records import Source
from backend.runs.retention import Retention

if TYPE_CHECKING:
    from backend.planning import Strategy

FIRST_DRAFT: Mapping[str, object] = {
    "version": 1,
    "name": "my-run",
    "cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8},
    "model": {"preset": "qwen3-vl-8b"},
    "training": {"gradient_accumulation_steps": 4},
    "parallel": {"pipeline": 2, "virtual_pipeline": 3},
}
"""What a new home starts from: four nodes of eight H100, the case this program was first asked about.

Its plan is the recommended one. TP stays 1: with more, LLaMA-Factory's Megatron trains vision parts wrongly.
"""


class DraftStore(Protocol):
    """Where a draft is kept, as text."""

    def get_draft(self) -> str | None: ...
    def set_draft(self, text: str) -> None: ...
    def get_draft_source(self) -> str | None: ...
    def set_draft_source(self, text: str | None) -> None: ...


class Draft:
    """The job being edited: one a server, kept in the store, so that a reload, another language or a restart keep it.

    It may be wrong or unfinished at any time; it is a mapping like the job file, not a Job. What looks like a secret in
    it stays in memory. Beside it stands the checkpoint of a run that it is to begin with, if any. Safe for many
    threads.
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
        """A copy of the job file's mapping, `cluster: NAME` not resolved."""
        with self._lock:
            return copy.deepcopy(self._mapping)

    @property
    def version(self) -> int:
        """Grows with every change, over restarts too; JavaScript holds it exactly."""
        with self._lock:
            return self._version

    def new_stamp(self) -> int:
        """Return a number that grows with every call, also across restarts, and is exact in JavaScript."""
        with self._lock:
            self._stamp = max(self._stamp + 1, time.time_ns() // 1000)
            return self._stamp

    def edit(self, path: str, value: object) -> None:
        """Set one dotted path, for example `parallel.tensor`; missing mappings on the way are made."""
        self.edit_all({path: value})

    def edit_all(self, edits: Mapping[str, object]) -> None:
        """Set several paths as one change; a named cluster that cannot be read gives way to the parts that are set.

        Raises ProblemsError when the job would be larger than a job file may be: it could not be read back.
        """
        with self._lock:
            mapping = copy.deepcopy(self._mapping)
            if any(path.startswith("cluster.") for path in edits):
                mapping = with_readable_cluster(mapping, self._home)
            for path, value in edits.items():
                _set(mapping, path.split("."), copy.deepcopy(value))
            self._keep(mapping)

    def replace(self, mapping: Mapping[str, object]) -> None:
        """Take another job whole. Raises ProblemsError when it is larger than a job file may be."""
        with self._lock:
            self._keep(copy.deepcopy(dict(mapping)))

    @property
    def source(self) -> Source | None:
        """The checkpoint of a run that a launch of the draft begins with."""
        with self._lock:
            return self._source

    def begin_with(self, source: Source | None) -> None:
        """From now on a launch begins with this checkpoint; None: at the beginning."""
        with self._lock:
            self._store.set_draft_source(source.to_json() if source else None)
            self._source = source

    def _keep(self, mapping: dict[str, object]) -> None:
        mapping = _writable(mapping)
        if mapping == self._mapping:
            return
        text = dump_mapping(mapping)
        if len(text) > MAXIMUM_TEXT:
            raise ProblemsError([Problem(code="file_too_large", values={"limit": MAXIMUM_TEXT})])
        kept = without_secrets(mapping)
        self._store.set_draft(text if kept == mapping else dump_mapping(kept))
        self._mapping = mapping
        self._version += 1


class Asking(Protocol):
    """An answer of the nodes that may wait for their host keys."""

    @property
    def unknown_host_keys(self) -> tuple[HostKey, ...]: ...


A = TypeVar("A", bound=Asking)


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """Everything a page handler may need; made once a process."""

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
    """The job file's mapping that the demo offers as a recipe; None where the server is no demo."""

    @classmethod
    def open(
        cls,
        home: Path,
        clock: Callable[[], float] = time.time,
        *,
        recipients: Iterable[str] = (),
        demo: Mapping[str, Any] | None = None,
    ) -> "Services":
        """Open the home folder's store and known hosts; nothing runs before `controller.start()`."""
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
        """Let go of connections and the store; runs go on."""
        self.controller.close()
        self.database.close()


def ask_nodes(controller: Controller, nodes: Callable[[], A], confirmed: Collection[str]) -> A:
    """The answer of the nodes; asked again once host keys that they show were confirmed by their fingerprints."""
    answer = nodes()
    keys = [key for key in answer.unknown_host_keys if key.fingerprint in confirmed]
    if not keys:
        return answer
    controller.accept_host_keys(keys)
    return nodes()


def known_hosts_of(home: Path) -> KnownHosts:
    """The host keys that this user's ssh knows, and those that were confirmed here."""
    return KnownHosts(home / "known_hosts", Path("~/.ssh/known_hosts").expanduser())


def _read(text: str | None) -> dict[str, object]:
    mapping, problem = load_mapping(text) if text else (FIRST_DRAFT, None)
    return copy.deepcopy(dict(FIRST_DRAFT if problem else mapping))


def _read_source(text: str | None) -> Source | None:
    """No mark where another version wrote what this one cannot read, as with the draft."""
    try:
        return Source.from_json(text) if text else None
    except (ValueError, TypeError, KeyError):
        return None


def _writable(value: Any) -> Any:
    """The same with every lone surrogate, which a browser may send and YAML cannot read back, as a question mark."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_writable(key): _writable(one) for key, one in value.items()}
    return [_writable(one) for one in value] if isinstance(value, list) else value


def _set(mapping: dict[str, object], path: list[str], value: object) -> None:
    *folders, last = path
    for folder in folders:
        inner = mapping.get(folder)
        if not isinstance(inner, dict):
            inner = mapping[folder] = {}
        mapping = inner
    mapping[last] = value
