"""Stop of a run while the store cannot be written, because its disk is full or read-only.

The nodes note the stop in their exit records. When the store can be written again, gang_monitor.py reads it there. If
the store cannot even be opened, backend/runs/emergency_stop.py stops the run.
"""

from collections.abc import Mapping, Sequence

from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import try_all
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.connections import Connections
from backend.runs.launch.launch import STOP_CALL_S, ask_for_save
from backend.runs.launch.slurm_stop import SLURM_STOP_S, stop_node
from backend.runs.records import NodeRecord
from backend.runs.states import RunState
from backend.runs.store import attempts, run_store
from backend.runs.store.node_replacement import job_on_nodes
from backend.runs.store.store import Store, StoreError

_ON_NODES = (RunState.STARTING, RunState.RUNNING, RunState.STOPPING)


def stop_unrecorded(
    store: Store, connections: Connections, run: str, *, save: bool, grace_s: float, why: StoreError
) -> ProblemsError:
    """Stop the run on its nodes, and return the error to raise: why the stop is not recorded, and which nodes failed.

    With `save`, the ranks save a checkpoint and then exit. A run without processes on nodes is not changed, and the
    returned error is `why`.
    """
    with store.read() as connection:
        state = run_store.state_of(connection, run)
        attempt = attempts.newest(connection, run)
        job = job_on_nodes(connection, run, attempt)
        records = attempts.nodes(connection, run, attempt)
    if state not in _ON_NODES or not records:
        return why

    def end(rank: int, record: NodeRecord) -> None:
        node = connections.get(job.cluster.connected_hosts[rank])
        end_on_node(job, run, attempt, record, node, records=records, save=save, grace_s=grace_s)

    stopped, failures = try_all(records, end, SLURM_STOP_S if job.cluster.scheduler else STOP_CALL_S)
    return what_was_done(run, len(stopped), failures, save=save, why=why)


def end_on_node(
    job: Job,
    run: str,
    attempt: int,
    record: NodeRecord,
    node: Node,
    *,
    records: Sequence[NodeRecord],
    save: bool,
    grace_s: float,
) -> None:
    """Stop the ranks, with `save` after a checkpoint. Raises NodeError, also when processes are left."""
    if save:
        ask_for_save(record, node)
    elif left := stop_node(job, run, attempt, records, record, node, grace_s)["left"]:
        raise NodeError("processes_left", node.name, processes=len(left))


def what_was_done(
    run: str, stopped: int, failures: Mapping[int, NodeError], *, save: bool, why: StoreError
) -> ProblemsError:
    """Return the number of stopped nodes, the reason of the missing record, and the errors of the other nodes."""
    values = {**why.problem.values, "run": run, "told": stopped, "nodes": stopped + len(failures)}
    code = "save_unrecorded" if save else "stop_unrecorded"
    return ProblemsError([Problem(code=code, values=values), *(error.problem for error in failures.values())])
