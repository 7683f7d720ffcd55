"""Evaluations of the models of a run: answers to rows of data, with LLaMA-Factory's metrics.

An evaluation is a derived run (store/derived_runs.py). When it has finished, its result is read from the node once, and
kept in the store.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from backend.cluster.node import Node, NodeError
from backend.cluster.node_json import BadJson, parse_node_json
from backend.cluster.program_answers.values import Word
from backend.cluster.typed_json import Longest, answer_of
from backend.job.problems import Problem, ProblemsError
from backend.runs.collect.log_text import readable
from backend.runs.connections import Connections
from backend.runs.records import problem_from_json
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, derived_runs, metrics, run_store
from backend.runs.store.metrics import FileKey
from backend.runs.store.node_replacement import job_on_nodes
from backend.runs.store.store import Store
from backend.runs.view import snapshot

_log = logging.getLogger(__name__)

RESULT_BYTES = 16 << 20
CHUNK = 1 << 20
LINE_LENGTH = 160
Text = Annotated[str, Longest(8000)]


class Row(TypedDict):
    """One row: what the model read, what it should answer, and what each model answered."""

    prompt: Text
    reference: Text
    answers: dict[str, Text]


class Result(TypedDict):
    """predictions.json of an evaluation."""

    rows: list[Row]
    metrics: dict[str, dict[str, float]]
    """Model -> metric -> value."""
    missing: list[Word]
    """Packages that the node lacks to count BLEU and ROUGE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """An evaluation for a page."""

    run: str
    models: tuple[str, ...]
    checkpoint: int | None
    data: str
    """held_out, eval_dataset, or trained: the models were trained on these rows."""
    state: RunState
    node: str
    why: Problem | None
    left: int | None
    """Processes that are left after its end; None before the proof."""
    line: str
    """The newest line of its log."""
    note: Problem | None
    """The packages for the metrics that its node lacked at its start."""
    has_result: bool
    """`Evaluations.result` returns it from the store."""


class Evaluations:
    """The evaluations of one home folder. Safe for many threads."""

    def __init__(self, store: Store, connections: Connections, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._connections = connections
        self._clock = clock
        self._lock = threading.Lock()
        self._fetching: set[str] = set()
        self._failures: dict[str, Problem] = {}

    def newest(self, trained: str) -> Evaluation | None:
        """Return the newest evaluation of a run; None without one. It reads only the store."""
        with self._store.read() as connection:
            derived = derived_runs.newest(connection, trained, "evaluation")
            if derived is None:
                return None
            shown = snapshot.snapshot(connection, derived.run, self._clock())
            node = job_on_nodes(connection, derived.run).cluster.hosts[0].name
            has_result = derived_runs.has_result(connection, derived.run)
            passed = run_store.newest_detail(connection, derived.run, 1, EventKind.WARNINGS_PASSED)
            file = f"rank{len(derived.request['models']) - 1}.log"
            keys = [FileKey(run=derived.run, attempt=1, rank=0, file=name) for name in (file, "rank0.log")]
            tails = [metrics.log_tail(connection, key, size=2000)[1] for key in keys] if shown.nodes else []
        if shown.state is RunState.FINISHED and not has_result:
            self._fetch_in_thread(derived.run)
        lines = readable(next(filter(None, tails), b"")).strip().splitlines()
        return Evaluation(
            run=derived.run,
            models=tuple(derived.request["models"]),
            checkpoint=derived.request["checkpoint"],
            data=derived.request["data"],
            state=shown.state,
            node=node,
            why=shown.cause or self._failures.get(derived.run),
            left=shown.nodes[0].processes_left if shown.nodes else None,
            line=lines[-1][-LINE_LENGTH:] if lines else "",
            note=problem_from_json(passed["warnings"][0]) if passed else None,
            has_result=has_result,
        )

    def result(self, run: str) -> Result:
        """Return the result of an evaluation, from the store or its node.

        Raises ProblemsError(evaluation_no_result).
        """
        with self._store.read() as connection:
            stored: Any = derived_runs.result_of(connection, run)
        return self.fetch(run) if stored is None else stored

    def fetch(self, run: str) -> Result:
        """Read the result from the node and store it. Raises ProblemsError."""
        with self._store.read() as connection:
            if derived_runs.read(connection, run) is None or not attempts.newest(connection, run):
                raise ProblemsError([Problem(code="evaluation_no_result", values={"run": run})])
            record = attempts.nodes(connection, run, 1)[0]
            host = job_on_nodes(connection, run).cluster.hosts[0]
        try:
            result = _read_result(self._connections.get(host), f"{record.folder}/predictions.json")
        except NodeError as error:
            raise ProblemsError([error.problem]) from error
        self._store.write(lambda c: derived_runs.add_result(c, run, dict(result), now=self._clock()))
        return result

    def _fetch_in_thread(self, run: str) -> None:
        with self._lock:
            if run in self._fetching:
                return
            self._fetching.add(run)
        threading.Thread(target=self._fetch, args=(run,), name=f"result {run}", daemon=True).start()

    def _fetch(self, run: str) -> None:
        try:
            self.fetch(run)
            self._failures.pop(run, None)
        except ProblemsError as error:  # the next poll of a page tries again
            _log.warning("the result of %s: %s", run, error)
            self._failures[run] = error.problems[0]
        finally:
            with self._lock:
                self._fetching.discard(run)


def _read_result(node: Node, path: str) -> Result:
    data = b""
    while part := node.read(path, len(data), CHUNK):
        data += part
        if len(data) > RESULT_BYTES:
            raise NodeError("too_much_output", node.name, command=path, limit=RESULT_BYTES)
    try:
        return answer_of(node.name, Result, parse_node_json(data, max_bytes=RESULT_BYTES))
    except BadJson as error:
        raise NodeError("bad_answer", node.name, command=path, exit=0, detail=str(error)) from error
