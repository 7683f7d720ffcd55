"""Failures that were provoked on real nodes (tests/diagnosis/provoke): the cause, the node and the rank are named from
the logs that they left."""

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.job.problems import Problem
from backend.runs.diagnosis.cause_catalogue import by_code
from backend.runs.diagnosis.diagnose import diagnose
from backend.runs.records import NodeRecord
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.metrics import FileKey, FileOffset
from backend.runs.store.store import Store
from tests.runs.test_collectives import text

RUN = "run"
CASES = sorted((Path(__file__).parent / "provoked").iterdir())
LEAST_CAUSES = 25
LATE_RANK = frozenset({"uneven_data", "tokenise_timeout"})
"""Reasons why a rank did not join a collective. Its log need not show the reason."""


def _case(folder: Path) -> dict[str, Any]:
    case: dict[str, Any] = yaml.safe_load((folder / "case.yaml").read_text(encoding="utf-8"))
    return case


def _ended(value: int) -> dict[str, Any]:
    if value == -signal.SIGTERM:  # the tool ended a node that would have gone on, as a gang's stop does
        return {"code": None, "signal": -value, "stopped": True}
    return {"code": None, "signal": -value} if value < 0 else {"code": value}


def _diagnose(store: Store, folder: Path, exits: dict[str, int]) -> Problem:
    common = {"stopped": False, "reason": "failed", "left": [], "time": 10.0}
    ends = [common | _ended(exits[f"node{rank}"]) for rank in range(len(exits))]
    nodes = [
        NodeRecord(rank=rank, address=f"node{rank}", folder="/f", python="/p", mark="m", exit=end)
        for rank, end in enumerate(ends)
    ]

    def write(connection: Any) -> None:
        job = text("llamafactory-ddp", len(exits), 1)
        run_store.create_run(connection, RUN, name="n", engine="e", job=job, addresses=[], time=0)
        attempts.create(connection, RUN, 1, master=("a", 1), rendered={}, nodes=nodes, time=0)
        for log in sorted(folder.glob("node*/*.log")):
            key = FileKey(run=RUN, attempt=1, rank=int(log.parent.name[4:]), file=log.name)
            metrics.add_log(connection, key, FileOffset(), log.read_bytes())

    store.write(write)
    with store.read() as connection:
        return diagnose(connection, RUN, 1, nodes)


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_a_provoked_failure_is_named_with_its_node_and_rank(store: Store, folder: Path) -> None:
    case = _case(folder)
    problem = _diagnose(store, folder, case["exits"])
    cause = by_code().get(problem.code)
    category = cause.category if cause else problem.code
    if case["category"] is not None:
        accepted = {case["category"], *(["collective_not_joined"] if case["category"] in LATE_RANK else [])}
        assert category in accepted, (problem.code, problem.values.get("line"))
    else:
        assert problem.code != "training_failed"
    if case["node"] is not None:
        assert problem.node == f"node{case['node']}"
    if case["rank"] is not None and problem.values.get("of_rank") is not None:
        assert problem.values["of_rank"] == case["rank"]


def test_enough_causes_are_provoked() -> None:
    assert len({_case(folder)["category"] for folder in CASES} - {None}) >= LEAST_CAUSES
