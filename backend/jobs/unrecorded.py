"""A stop that cannot be recorded, because the store's disk is full or read-only: it reaches the nodes all the same.

The nodes write into their exit records that they were told to stop; once the store can be written again, the run's lead
learns it from there (lead.py).
"""

from backend.cluster.group import try_all
from backend.cluster.node import NodeError
from backend.job.problems import Problem, ProblemsError
from backend.jobs import ledger
from backend.jobs.connections import Connections
from backend.jobs.launch import STOP_CALL_S, ask_for_save, stop_supervisor
from backend.jobs.records import NodeRecord
from backend.jobs.states import RunState
from backend.jobs.store import Store, StoreError

_ON_NODES = (RunState.STARTING, RunState.RUNNING, RunState.STOPPING)


def stop_unrecorded(
    store: Store, connections: Connections, run: str, *, save: bool, grace_s: float, why: StoreError
) -> ProblemsError:
    """Stop the run on its nodes, and answer what to raise: what was done and was not recorded, and what failed.

    With `save` the ranks are asked for a checkpoint and end by themselves afterwards. A run that has nothing on its
    nodes is left as it is, and the answer is `why`.
    """
    with store.read() as connection:
        job = ledger.job_of(connection, run)
        state = ledger.state_of(connection, run)
        records = ledger.nodes(connection, run, ledger.newest_attempt(connection, run))
    if state not in _ON_NODES or not records:
        return why

    def end(rank: int, record: NodeRecord) -> None:
        node = connections.get(job.cluster.hosts[rank])
        if save:
            ask_for_save(record, node)
        elif left := stop_supervisor(record, node, grace_s).get("left"):
            raise NodeError("processes_left", node.name, processes=len(left))

    told, failures = try_all(dict(enumerate(records)), end, STOP_CALL_S)
    values = {**why.problem.values, "run": run, "told": len(told), "nodes": len(records)}
    code = "save_unrecorded" if save else "stop_unrecorded"
    return ProblemsError([Problem(code=code, values=values), *(failures[rank].problem for rank in sorted(failures))])
