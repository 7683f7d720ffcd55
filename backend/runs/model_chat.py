"""Chats with the models of a run: what a page shows of them, and the answers of their servers.

A chat is a derived run (store/derived_runs.py). Its node keeps the models in memory until somebody stops it, or until
nobody has asked for half an hour.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from backend.cluster.chat_stream import ChatStream
from backend.cluster.node import Node, NodeError
from backend.cluster.program_answers.values import Word
from backend.cluster.typed_json import Between
from backend.job.problems import Problem, ProblemsError
from backend.runs.connections import Connections
from backend.runs.rank_secrets import ApiKeys
from backend.runs.records import RunSnapshot
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, derived_runs, run_store
from backend.runs.store.node_replacement import job_on_nodes
from backend.runs.store.store import Store
from backend.runs.tasks.one_off_task import read_answer
from backend.runs.view import snapshot

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often a loading server is asked for its port."""

Phase = Literal["waiting", "starting", "loading", "ready", "unreachable", "stopping", "ended"]
"""`unreachable`: the node cannot be read now. The chat goes on when it can be read again."""


class ServerRecord(TypedDict):
    """server.<name>.json of a model server."""

    port: Annotated[int, Between(1, 65535)]
    backend: Word


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChat:
    """A chat for a page."""

    run: str
    """The derived run."""
    models: tuple[str, ...]
    checkpoint: int | None
    phase: Phase
    node: str
    why: Problem | None = None
    """What it waits for, or why it failed."""
    left: int | None = None
    """Processes that are left after its end; None before the proof."""
    backends: Mapping[str, str] = field(default_factory=dict)
    """Model -> the program that generates."""
    is_ours: bool = True
    """False when this process does not have the key of the chat, because another one started it."""


class Chats:
    """The chats of one home folder. Safe for many threads."""

    def __init__(
        self, store: Store, connections: Connections, keys: ApiKeys, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._connections = connections
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._servers: dict[str, dict[str, ServerRecord]] = {}
        """Chat -> its models that are loaded."""
        self._loading: set[str] = set()

    def newest(self, trained: str) -> ModelChat | None:
        """Return the newest chat with the models of a run; None without one. It reads only the store."""
        with self._store.read() as connection:
            derived = derived_runs.newest(connection, trained, "chat")
            if derived is None:
                return None
            shown = snapshot.snapshot(connection, derived.run, self._clock())
            node = job_on_nodes(connection, derived.run).cluster.hosts[0].name
        models = tuple(derived.request["models"])
        with self._lock:
            servers = dict(self._servers.get(derived.run, {}))
        is_ours = self._keys.get(derived.run) is not None
        if shown.state is RunState.RUNNING and len(servers) < len(models) and is_ours:
            self._find_servers(derived.run, models)
        return ModelChat(
            run=derived.run,
            models=models,
            checkpoint=derived.request["checkpoint"],
            phase=_phase(shown, is_ready=len(servers) == len(models)),
            node=node,
            why=shown.cause,
            left=shown.nodes[0].processes_left if shown.nodes else 0,
            backends={name: server["backend"] for name, server in servers.items()},
            is_ours=is_ours,
        )

    def ask(self, chat: str, model: str, request: Mapping[str, Any]) -> ChatStream:
        """Send a request to a model of a chat. Raises ProblemsError: chat_not_ready, and problems of the node."""
        with self._lock:
            server = self._servers.get(chat, {}).get(model)
        key = self._keys.get(chat)
        if server is None or key is None:
            raise ProblemsError([Problem(code="chat_not_ready", values={"run": chat, "model": model})])
        try:
            return ChatStream(self._node(chat), server["port"], key, request)
        except NodeError as error:
            raise ProblemsError([error.problem]) from error

    def was_stopped(self, chat: str) -> bool:
        """Return whether somebody ended the chat, so that an answer that broke off is no failure."""
        with self._store.read() as connection:
            return any(event.kind is EventKind.STOP_REQUESTED for event in run_store.events(connection, chat))

    def _node(self, chat: str) -> Node:
        with self._store.read() as connection:
            return self._connections.get(job_on_nodes(connection, chat).cluster.hosts[0])

    def _find_servers(self, chat: str, models: tuple[str, ...]) -> None:
        """Read the ports of a chat's servers in a thread, until all models are loaded or the chat ends."""
        with self._lock:
            if chat in self._loading:
                return
            self._loading.add(chat)
        threading.Thread(target=self._read_ports, args=(chat, models), name=f"load {chat}", daemon=True).start()

    def _read_ports(self, chat: str, models: tuple[str, ...]) -> None:
        try:
            while len(self._servers.get(chat, {})) < len(models) and self._is_running(chat):
                for name in models:
                    self._read_port(chat, name)
                time.sleep(LOOK_S)
        except (NodeError, ProblemsError) as error:  # the next poll of a page tries again
            _log.info("reading the ports of %s: %s", chat, error)
        finally:
            with self._lock:
                self._loading.discard(chat)

    def _read_port(self, chat: str, name: str) -> None:
        with self._store.read() as connection:
            record = attempts.nodes(connection, chat, 1)[0]
        server = read_answer(self._node(chat), f"{record.folder}/server.{name}.json", ServerRecord)
        if server is not None:
            with self._lock:
                self._servers.setdefault(chat, {})[name] = server

    def _is_running(self, chat: str) -> bool:
        with self._store.read() as connection:
            return snapshot.snapshot(connection, chat, self._clock()).state is RunState.RUNNING


def _phase(shown: RunSnapshot, *, is_ready: bool) -> Phase:
    if shown.state.is_final:
        return "ended"
    if shown.state is RunState.RUNNING and any(node.state in ("unreachable", "unseen") for node in shown.nodes):
        return "unreachable"
    if shown.state is RunState.RUNNING:
        return "ready" if is_ready else "loading"
    phases: Mapping[RunState, Phase] = {RunState.QUEUED: "waiting", RunState.STOPPING: "stopping"}
    return phases.get(shown.state, "starting")
