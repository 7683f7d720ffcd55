"""Ranks that did not join a collective that timed out, from lines that torch's watchdogs wrote on real clusters.

NCCL needs GPUs, so nothing here makes it hang: the lines are those of published logs, with their addresses.
"""

import pytest

from backend.job.job import Job
from backend.job.mapping import dump_mapping, load_job
from backend.runs.diagnosis.collectives import MOST, Verdict, judge, read
from backend.runs.diagnosis.diagnose import diagnose
from backend.runs.records import NodeRecord
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.metrics import FileKey, FileOffset
from backend.runs.store.store import Store

RUN = "run"
AT = "ProcessGroupNCCL.cpp"


def job(engine: str = "llamafactory-zero2", nodes: int = 2, gpus: int = 8, **parallel: int) -> Job:
    result, problems = load_job(text(engine, nodes, gpus, **parallel))
    assert result is not None, problems
    return result


def text(engine: str, nodes: int, gpus: int, **parallel: int) -> str:
    hosts = [{"address": f"10.0.0.{i + 1}"} for i in range(nodes)]
    cluster = {"gpu": "h100-80g", "nodes": nodes, "gpus_per_node": gpus, "hosts": hosts}
    model = {"preset": "qwen3-8b"}
    return dump_mapping(
        {"version": 1, "name": "n", "cluster": cluster, "model": model, "engine": engine, "parallel": parallel}
    )


def waited(
    rank: int,
    number: int,
    *,
    begun: int | None = None,
    group: str = "ID 0 PG GUID 0(default_pg)",
    place: int | None = None,
    operation: str = "ALLREDUCE",
) -> str:
    """Return a line of torch 2.6 and later (https://github.com/OpenRLHF/OpenRLHF/issues/1126)."""
    begun = number if begun is None else begun
    return (
        f"[rank{rank}]:[E901 05:20:03.123992144 {AT}:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600020 "
        "milliseconds before timing out.\n"
        f"[rank{rank}]:[E901 05:20:03.124072 {AT}:2271] [PG {group} Rank {rank if place is None else place}]  failure "
        f"detected by watchdog at work sequence id: {number} PG status: last enqueued work: {begun}, last completed "
        f"work: {number - 1}\n"
    )


def dumped(rank: int, begun: int, by: str = " rank 6") -> str:
    """Return the line that every rank writes after the first time-out (same source)."""
    return (
        f"[rank{rank}]:[E901 05:20:03.118859045 {AT}:1746] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump "
        f"signal due to a collective timeout from {by} and we will try our best to dump the debug info. Last enqueued "
        f"NCCL work: {begun}, last completed NCCL work: {begun}.This is most likely caused by incorrect usages of "
        "collectives, e.g., wrong sizes used across ranks\n"
    )


def verdict(logs: dict[int, str], ranks: Job) -> Verdict:
    return judge({rank: read(log) for rank, log in logs.items()}, ranks)


def test_the_ranks_that_had_begun_fewer_operations_did_not_come() -> None:
    """Node 1 waits in operation 167 of all ranks; the ranks of node 0 had begun 166, as on a cluster of 16."""
    logs = {rank: waited(rank, 167) for rank in range(8, 16)}
    logs |= {rank: dumped(rank, 167) for rank in range(1, 8)} | {0: dumped(0, 166)}
    result = verdict(logs, job())
    assert (result.why, result.ranks, result.operations, result.waited_s) == ("absent", (0,), ("ALLREDUCE",), 600.02)
    assert result.waiting == 8


def test_a_rank_that_says_nothing_at_all_did_not_come_where_more_than_half_wait() -> None:
    result = verdict({rank: waited(rank, 7) for rank in range(16) if rank != 5} | {5: "step 3\n"}, job())
    assert (result.why, result.ranks) == ("absent", (5,))


def test_words_of_torch_2_5_are_read_too() -> None:
    """https://github.com/hiyouga/LlamaFactory/issues/6269"""
    line = (
        "[rank{0}]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, NumelOut=68124672, "
        "Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
        "[rank{0}]:[E1206 18:44:12.715588844 ProcessGroupNCCL.cpp:1664] [PG 1 Rank {0}] Exception (either an error or "
        "timeout) detected by watchdog at work: 7753, last enqueued NCCL work: 7755, last completed NCCL work: 7752.\n"
        "[rank{0}]:[E1206 18:44:12.7 ProcessGroupNCCL.cpp:1709] [PG 1 Rank {0}] Timeout at NCCL work: 7753, last "
        "enqueued NCCL work: 7755, last completed NCCL work: 7752.\n"
    )
    result = verdict({rank: line.format(rank) for rank in range(8) if rank != 3}, job(nodes=1))
    assert (result.why, result.ranks, result.operations) == ("absent", (3,), ("REDUCE_SCATTER_BASE",))


def test_when_all_came_the_network_or_a_gpu_is_to_blame() -> None:
    result = verdict({rank: waited(rank, 9, begun=12) for rank in range(16)}, job())
    assert (result.why, result.waiting) == ("hung", 16)


def test_ranks_that_began_different_operations_at_one_place_are_distinguished() -> None:
    logs = {rank: waited(rank, 11, operation="BROADCAST" if rank == 2 else "ALLREDUCE") for rank in range(4)}
    result = verdict(logs, job(nodes=1, gpus=4))
    assert (result.why, result.operations) == ("differ", ("ALLREDUCE", "BROADCAST"))


def test_one_that_was_told_to_dump_has_not_waited_itself() -> None:
    """https://github.com/hiyouga/LlamaFactory/issues/8261"""
    assert read(dumped(0, 6)).waits == ()


class TestGroupsOfMegatron:
    """16 ranks with TP 2 and PP 2, so DP is 4. Rank 5 hangs, and each other rank waits where it needs rank 5."""

    plan = job("llamafactory-megatron", tensor=2, pipeline=2)
    tensor = waited(4, 40, group="ID 3 PG GUID 31(TENSOR_MODEL_PARALLEL_GROUP)", place=0, operation="_ALLGATHER_BASE")
    data = waited(1, 12, group="ID 2 PG GUID 9(DATA_PARALLEL_GROUP_WITH_CP)", place=0, operation="_REDUCE_SCATTER_BASE")

    def test_the_one_that_its_tensor_parallel_peer_waits_for_is_named(self) -> None:
        result = verdict(dict.fromkeys(range(16), "") | {4: self.tensor}, self.plan)
        assert (result.why, result.ranks, result.operations) == ("absent", (5,), ("ALLGATHER_BASE",))

    def test_who_waits_elsewhere_is_not_named_by_those_that_wait_for_it(self) -> None:
        tensor_of_3 = waited(3, 44, group="ID 3 PG GUID 30(TENSOR_MODEL_PARALLEL_GROUP)", place=1)
        peers = {2: tensor_of_3, 3: tensor_of_3, 7: waited(7, 9), 6: waited(6, 9)}
        result = verdict({1: self.data, 4: self.tensor, **peers}, self.plan)
        assert (result.why, result.ranks) == ("absent", (5,))

    def test_a_stage_that_waits_for_its_neighbour_says_nothing_of_the_other_stages(self) -> None:
        pipe = waited(13, 8, group="ID 6 PG GUID 50(PIPELINE_MODEL_PARALLEL_GROUP)", place=1, operation="RECV")
        result = verdict({13: pipe}, self.plan)
        assert result.why == "hung"

    def test_more_than_a_few_are_not_named(self) -> None:
        wide = job("llamafactory-megatron", nodes=4, tensor=1)
        alone = waited(0, 3, group="ID 2 PG GUID 9(DATA_PARALLEL_GROUP_WITH_CP)", place=0)
        result = verdict({0: alone}, wide)
        assert result.why == "hung"
        assert wide.world_size - 1 > MOST


@pytest.mark.parametrize(
    ("silent", "wrote", "code", "node"),
    [
        (11, "saving of rank 11\n", "collective_not_joined", "10.0.0.2"),
        (11, "", "collective_not_joined", "10.0.0.2"),
        (None, "", "collective_hung", "10.0.0.1"),
    ],
    ids=["one is absent", "and has written nothing", "none is"],
)
def test_the_run_names_the_node_of_who_did_not_come_and_shows_its_log(
    store: Store, silent: int | None, wrote: str, code: str, node: str
) -> None:
    """Another node gives up first. torchrun's and torch's abort messages end every log."""
    nodes = [
        NodeRecord(rank=i, address=f"10.0.0.{i + 1}", folder="/f", python="/p", mark="m", exit=_ended(i))
        for i in (0, 1)
    ]

    def write(connection) -> None:
        lines = text("llamafactory-zero2", 2, 8)
        run_store.create_run(connection, RUN, name="n", engine="e", job=lines, addresses=[], time=0)
        attempts.create(connection, RUN, 1, master=("a", 1), rendered={}, nodes=nodes, time=0)
        for rank in range(16):
            if log := wrote if rank == silent else waited(rank, 7) + ABORT.format(rank):
                key = FileKey(run=RUN, attempt=1, rank=rank // 8, file=f"rank{rank}.log")
                metrics.add_log(connection, key, FileOffset(), log.encode())
        key = FileKey(run=RUN, attempt=1, rank=0, file="out.log")
        metrics.add_log(connection, key, FileOffset(), TORCHRUN.encode())

    store.write(write)
    with store.read() as connection:
        problem = diagnose(connection, RUN, 1, nodes)
    assert (problem.code, problem.node) == (code, node)
    assert problem.values["file"] == ("" if silent and not wrote else f"rank{silent or 0}.log")
    if silent:
        assert (problem.values["ranks"], problem.values["waiting"]) == ("rank 11", 15)


def _ended(rank: int) -> dict[str, object]:
    stopped = rank == 1
    return {"code": None if stopped else 1, "stopped": stopped, "reason": "stopped" if stopped else "failed",
            "left": [], "time": 10.0 + rank}  # fmt: skip


ABORT = """[rank{0}]:[E901 05:21:03.1 ProcessGroupNCCL.cpp:684] [Rank {0}] Some NCCL operations have failed.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank {0}] Process group watchdog thread terminated with exception: \
[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, \
Timeout(ms)=600000) ran for 600020 milliseconds before timing out.
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:635
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x98
"""
TORCHRUN = """Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  exitcode  : -6 (pid: 7)
  traceback : Signal 6 (SIGABRT) received by PID 7
"""
