"""Measures the speed of a cluster: a one-off task that runs backend/node/benchmark.py on every rank."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backend.cluster.benchmark import Speeds, summarise
from backend.cluster.inventory.gpus import BUSY_MIB
from backend.cluster.inventory.hardware import Hardware, read_all_hardware
from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import on_all
from backend.cluster.node_programs import node_program
from backend.cluster.program_answers.hardware import Measured
from backend.cluster.ssh.host_keys import HostKey
from backend.cluster.typed_json import shown
from backend.engines import NodeCommand, Placement, Rendered
from backend.engines.torchrun import torchrun_command
from backend.job.cluster import Calibration
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.node.benchmark import LIMIT_S
from backend.runs.collect.node_records import Exit
from backend.runs.launch import launch
from backend.runs.launch.preflight import ConnectedNodes
from backend.runs.tasks.calibration import to_four_digits
from backend.runs.tasks.one_off_task import (
    CALL_S,
    all_read,
    free_port,
    log_excerpt,
    make_attempt,
    read_answer,
    read_exit,
    read_facts,
    run_task,
)

PROGRAM = "benchmark.py"
LEFT = "measure_left"
POLL_S = 0.5
SPARE_S = 30.0
"""Time for the start and the end of torchrun, in addition to the limit of the ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """Time, injected."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = time.sleep


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Result of a benchmark. Without `speeds`, the user has to confirm the host keys first."""

    speeds: Speeds | None = None
    unknown_host_keys: tuple[HostKey, ...] = ()
    problems: tuple[Problem, ...] = ()
    """Warnings about the speeds, or why there are no speeds."""


def measure(job: Job, connected: ConnectedNodes, run: str, *, clock: Clock | None = None) -> Measurement:
    """Return the speeds of the job's nodes, with warnings about them. This takes a minute or two. Raises ProblemsError.

    In every case, the processes are stopped and the folders are removed. A problem names each node where this failed.
    """
    if connected.unknown_host_keys:
        return Measurement(unknown_host_keys=connected.unknown_host_keys, problems=connected.problems)
    nodes = connected.all_nodes()
    facts, hardware = read_facts(job, nodes), all_read(read_all_hardware(job, nodes))
    attempt = _attempt(job, nodes, facts, run)
    rows, failures = run_task(attempt, nodes, LEFT, lambda: _wait(attempt, nodes, clock or Clock()))
    speeds = summarise(rows)
    names = {rank: node.name for rank, node in nodes.items()}
    return Measurement(speeds=speeds, problems=(*slow_problems(names, speeds), *_busy(nodes, hardware), *failures))


def calibration_of(job: Job, speeds: Speeds, date: str) -> Calibration:
    """Return the cluster's calibration with these speeds.

    The time ratio is removed, because it belongs to an estimate with other speeds. The memory ratio and its run stay.
    """
    previous = job.cluster.calibration
    base = previous if previous.holds_for(job.cluster.gpu) and previous.memory_ratio is not None else Calibration()
    return Calibration(
        gpu=job.cluster.gpu,
        run=base.run,
        run_date=base.run_date,
        engine=base.engine,
        training=base.training,
        memory_ratio=base.memory_ratio,
        memory_runs=base.memory_runs,
        memory_spread=base.memory_spread,
        probe_date=date,
        matmul_tflops=to_four_digits(speeds.matmul_tflops),
        matmul_precision=speeds.precision,
        intra_node_bus_gb_per_s=to_four_digits(speeds.intra_node_bus_gb_per_s),
        inter_node_bus_gb_per_s=to_four_digits(speeds.inter_node_bus_gb_per_s),
    )


def _attempt(job: Job, nodes: Mapping[int, Node], facts: Mapping[int, NodeFacts], run: str) -> launch.Attempt:
    placement = launch.make_placement(job, run, 1, facts, free_port(job, nodes[0]))
    files = {PROGRAM: node_program(PROGRAM).decode()}
    rendered = Rendered(files=files, commands=tuple(_commands(job, placement)))
    return make_attempt(job, run, placement, facts, rendered, LIMIT_S)


def _commands(job: Job, placement: Placement) -> list[NodeCommand]:
    """Return the commands that start the ranks like those of a run, without the settings of an engine."""
    commands = []
    for node in placement.nodes:
        variables = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if node.interface:
            variables |= {"NCCL_SOCKET_IFNAME": f"={node.interface}", "GLOO_SOCKET_IFNAME": node.interface}
        argv = torchrun_command(placement, node, ranks=job.cluster.gpus_per_node, program=PROGRAM)
        commands.append(NodeCommand(rank=node.rank, argv=argv, environment={**variables, **job.environment}))
    return commands


def _wait(attempt: launch.Attempt, nodes: Mapping[int, Node], clock: Clock) -> list[Measured]:
    """Wait for all nodes; return the row of every rank.

    Raises ProblemsError for the first failed node, or after the limit.
    """
    deadline = clock.now() + LIMIT_S + SPARE_S
    ended: dict[int, Exit] = {}
    while len(ended) < len(nodes):
        running = {rank: node for rank, node in nodes.items() if rank not in ended}
        exits = on_all(running, lambda rank, node: read_exit(attempt, rank, node), CALL_S)
        ended |= {rank: content for rank, content in exits.items() if content is not None}
        failed = [rank for rank, content in ended.items() if content.get("code") != 0]
        if failed:
            failed_first = min(failed, key=lambda rank: ended[rank]["time"] - attempt.records[rank].clock_offset_s)
            raise ProblemsError([_failure(attempt, failed_first, nodes[failed_first])])
        if len(ended) < len(nodes) and clock.now() > deadline:
            names = [attempt.records[rank].address for rank in nodes if rank not in ended]
            raise ProblemsError([Problem(code="measure_timed_out", values={"nodes": names, "seconds": LIMIT_S})])
        if len(ended) < len(nodes):
            clock.wait(POLL_S)
    rows_by_node = on_all(nodes, lambda rank, node: _rows(attempt, rank, node), CALL_S)
    return [row for rows in rows_by_node.values() for row in rows]


def _rows(attempt: launch.Attempt, rank: int, node: Node) -> list[Measured]:
    folder = attempt.records[rank].folder
    rows = []
    for local, global_rank in enumerate(launch.ranks_of(attempt.job, rank)):
        row = read_answer(node, f"{folder}/measured.rank{global_rank}.json", Measured)
        if row is None or (row["rank"], row["node"], row["local_rank"]) != (global_rank, rank, local):
            raise NodeError(
                "bad_answer", node.name, command=PROGRAM, exit=0, detail=f"rank {global_rank}: {shown(row)}"
            )
        rows.append(row)
    return rows


def _failure(attempt: launch.Attempt, rank: int, node: Node) -> Problem:
    """Return the problem of a failed node, with the last lines of its ranks or of torchrun."""
    names = [*(f"rank{global_rank}.log" for global_rank in launch.ranks_of(attempt.job, rank)), "out.log"]
    lines = next(filter(None, (log_excerpt(node, f"{attempt.records[rank].folder}/{name}") for name in names)), "")
    return Problem(code="measure_failed", node=node.name, values={"node": node.name, "lines": lines})


def slow_problems(names: Mapping[int, str], speeds: Speeds) -> Sequence[Problem]:
    """Return a warning for each slow rank, node or port. `names`: node rank -> name."""
    return [
        Problem(code=f"slow_{slow.what}", severity="warning", node=None if slow.node is None else names[slow.node],
                values={"rank": slow.node, "gpu": slow.local_rank, "measured": f"{slow.measured:.3g}",
                        "median": f"{slow.median:.3g}", "share": round(100 * slow.measured / slow.median)})
        for slow in speeds.slow
    ]  # fmt: skip


def _busy(nodes: Mapping[int, Node], hardware: Mapping[int, Hardware]) -> Sequence[Problem]:
    """Return a warning for each GPU that other programs were using."""
    return [
        Problem(code="measure_busy", severity="warning", node=nodes[rank].name,
                values={"node": nodes[rank].name, "gpu": gpu.index, "used_mib": gpu.memory_used_mib})
        for rank, machine in hardware.items() for gpu in machine.gpus.gpus if (gpu.memory_used_mib or 0) > BUSY_MIB
    ]  # fmt: skip
