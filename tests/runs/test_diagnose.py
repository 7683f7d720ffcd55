import json

import pytest

from backend.job.problems import Problem
from backend.runs.diagnosis.diagnose import diagnose
from backend.runs.records import NodeRecord
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.metrics import FileKey, FileOffset
from backend.runs.store.store import Store

RUN = "run"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
PEER = TRACEBACK + "RuntimeError: [enforce fail] Connection closed by peer [10.0.0.2]:4321\n"
BLAME = "Root Cause (first observed failure):\n[0]:\n  time : x\n  host : h\n  rank      : 3 (local_rank: 1)\n"


def _node(rank: int, code: int | None = 1, time: float = 10.0, **more: object) -> NodeRecord:
    ended = {"code": code, "stopped": False, "reason": "failed", "left": [], "time": time, **more}
    return NodeRecord(rank=rank, address=f"node{rank}:22", folder="/f", python="/p", mark="m", exit=ended)


def _diagnose(
    store: Store,
    nodes: list[NodeRecord],
    logs: dict[tuple[int, str], str],
    versions: dict[str, dict[str, str]] | None = None,
) -> Problem:
    rendered = {"versions": versions} if versions else {}

    def write(connection) -> None:
        run_store.create_run(connection, RUN, name="n", engine="e", job="", addresses=[], time=0)
        attempts.create(connection, RUN, 1, master=("a", 1), rendered=rendered, nodes=nodes, time=0)
        for (rank, file), text in logs.items():
            key = FileKey(run=RUN, attempt=1, rank=rank, file=file)
            metrics.add_log(connection, key, FileOffset(), text.encode())

    store.write(write)
    with store.read() as connection:
        return diagnose(connection, RUN, 1, nodes)


def test_a_cause_in_the_software_has_the_versions_of_its_node(store: Store) -> None:
    text = TRACEBACK + "ModuleNotFoundError: No module named 'mcore_adapter'\n"
    versions = {"0": {"torch": "2.7.0"}, "1": {"torch": "2.13.0", "Python": "3.11.2"}}
    logs = {(1, "rank3.log"): text, (0, "rank0.log"): PEER}
    assert _diagnose(store, [_node(0), _node(1)], logs, versions).values["versions"] == versions["1"]


def test_a_cause_in_the_data_has_no_versions(store: Store) -> None:
    logs = {(0, "rank0.log"): TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.txt'\n"}
    problem = _diagnose(store, [_node(0)], logs, {"0": {"torch": "2.7.0"}})
    assert (problem.code, problem.values.get("versions")) == ("file_missing", None)


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", "gpu_memory_phase_unknown", "2 GiB"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "gpu_memory_phase_unknown", None),
        (
            "ValueError: Some keys are not used by the HfArgumentParser: ['foo_bar']",
            "unknown_engine_keys",
            "['foo_bar']",
        ),
        ("torch.distributed.DistNetworkError: ... port: 29500, EADDRINUSE, address in use", "master_port_taken", None),
        ("OSError: [Errno 98] Address already in use", "master_port_taken", None),
        ("ModuleNotFoundError: No module named 'mcore_adapter'", "module_missing", "No module named 'mcore_adapter'"),
        ("ImportError: mcore_adapter is required when USE_MCA=1.", "module_missing", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/list.txt'", "file_missing", None),
        ("OSError: [Errno 28] No space left on device", "disk_full", None),
        ("OSError: [Errno 122] Disk quota exceeded: '/out/x'", "disk_full", None),
        ("OSError: [Errno 30] Read-only file system: '/out/checkpoint-10'", "file_system_read_only", None),
        # As torch 2.13 tells of a disk that is full, and older ones.
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 6208 vs 6100", "save_failed", None),
        ("RuntimeError: PytorchStreamWriter failed writing file data/5: file write failed", "save_failed", None),
        ("ValueError: something new", "training_failed", None),
    ],
)
def test_known_texts_get_their_own_code(store: Store, text: str, code: str, value: str | None) -> None:
    problem = _diagnose(store, [_node(0)], {(0, "rank0.log"): TRACEBACK + text + "\n"})
    assert (problem.code, problem.node) == (code, "node0:22")
    assert text in str(problem.values["lines"])
    assert value is None or value in problem.values.values()


def test_of_chained_tracebacks_without_a_known_cause_the_first_is_shown_too(store: Store) -> None:
    first, link = (
        TRACEBACK + "LookupError: first\n",
        "\nDuring handling of the above exception, another exception occurred:\n\n",
    )
    log = TRACEBACK + "ImportError: handled\n" + "step\n" * 40 + first + link + TRACEBACK + "ValueError: second\n"
    lines = str(_diagnose(store, [_node(0)], {(0, "rank0.log"): log}).values["lines"])
    assert ("handled" in lines, "LookupError: first" in lines, lines.endswith("ValueError: second")) == (
        False,
        True,
        True,
    )


def test_warnings_of_a_healthy_start_are_no_cause(store: Store) -> None:
    noise = "UserWarning: FileNotFoundError: optional.so\n" + "step\n" * 40
    problem = _diagnose(store, [_node(0)], {(0, "rank0.log"): noise + TRACEBACK + "ValueError: real\n"})
    assert problem.code == "training_failed"


def test_the_node_with_a_cause_wins_over_earlier_ones_that_lost_a_peer(store: Store) -> None:
    logs = {(0, "rank0.log"): PEER, (1, "rank1.log"): TRACEBACK + "ValueError: mine\n"}
    problem = _diagnose(store, [_node(0, time=9.0), _node(1, time=10.0)], logs)
    assert (problem.code, problem.node) == ("training_failed", "node1:22")


def test_a_killed_rank_is_to_blame_for_what_its_peers_say(store: Store) -> None:
    killed = TRACEBACK + "ChildFailedError\n" + BLAME + "  exitcode  : -9 (pid: 7)\n"
    logs = {(0, "rank0.log"): PEER, (1, "out.log"): killed}
    problem = _diagnose(store, [_node(0, time=9.0), _node(1, time=10.0)], logs)
    assert (problem.code, problem.node) == ("killed", "node1:22")


def test_ranks_that_only_lost_each_other_lost_their_connection(store: Store) -> None:
    nccl = TRACEBACK + "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp\n"
    problem = _diagnose(store, [_node(0, time=9.0), _node(1)], {(0, "rank0.log"): nccl, (1, "rank1.log"): PEER})
    assert (problem.code, problem.node) == ("communication_failed", "node0:22")


def test_the_known_cause_wins_over_an_unknown_one(store: Store) -> None:
    logs = {(0, "rank0.log"): PEER, (1, "rank1.log"): TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory.\n"}
    problem = _diagnose(store, [_node(0, time=9.0), _node(1, time=10.0)], logs)
    assert (problem.code, problem.node) == ("gpu_memory_phase_unknown", "node1:22")


def test_the_rank_that_torchrun_blames_speaks_first(store: Store) -> None:
    logs = {
        (0, "out.log"): TRACEBACK + "ChildFailedError\n" + BLAME,
        (0, "rank2.log"): TRACEBACK + "ValueError: later\n",
        (0, "rank3.log"): TRACEBACK + "ValueError: first\n",
    }
    problem = _diagnose(store, [_node(0)], logs)
    assert problem.values["file"] == "rank3.log"
    assert "first" in str(problem.values["lines"])


def test_without_any_log_the_node_and_its_exit_are_named(store: Store) -> None:
    problem = _diagnose(store, [_node(0, code=137)], {})
    assert (problem.code, problem.values["exit"], problem.values["lines"]) == ("training_failed", 137, "")


def test_kill_and_stall_are_reported_by_the_exit_record(store: Store) -> None:
    killed = _diagnose(store, [_node(0, code=None, signal=9)], {})
    assert killed.code == "killed"


def test_stalled_is_reported_by_the_exit_record(store: Store) -> None:
    assert _diagnose(store, [_node(0, code=None, reason="stalled")], {}).code == "stalled"


def test_a_stall_is_reported_though_torchrun_complains_of_the_signal_that_ended_it(store: Store) -> None:
    text = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 37 got signal: 15\n"
    nodes = [_node(rank, code=1, reason="stalled", time=10.0 + rank) for rank in range(2)]
    problem = _diagnose(store, nodes, {(0, "out.log"): text, (1, "out.log"): text})
    assert (problem.code, problem.node) == ("stalled", "node0:22")


def test_a_loss_that_became_nan_explains_a_failure_without_text(store: Store) -> None:
    def write(connection) -> None:
        run_store.create_run(connection, RUN, name="n", engine="e", job="", addresses=[], time=0)
        attempts.create(connection, RUN, 1, master=("a", 1), rendered={}, nodes=[_node(0)], time=0)
        rows = [{"step": 1, "time": 1, "loss": 2.0}, {"step": 2, "time": 2, "loss": float("nan")}]
        metrics.add_points(connection, RUN, 1, 0, rows)

    store.write(write)
    with store.read() as connection:
        problem = diagnose(connection, RUN, 1, [_node(0)])
    assert problem.code == "loss_not_finite"
    json.dumps(dict(problem.values))


def test_a_kill_by_the_kernel_for_memory_is_named_and_its_node_goes_first(store: Store) -> None:
    killed = TRACEBACK + "ChildFailedError\n" + BLAME + "  exitcode  : -9 (pid: 7)\n"
    nodes = [_node(0, time=9.0), _node(1, time=10.0, oom_kills=1)]
    problem = _diagnose(store, nodes, {(0, "out.log"): killed, (1, "out.log"): killed})
    assert (problem.code, problem.node) == ("host_out_of_memory", "node1:22")
