"""Failures of nodes: ports, rendezvous, interfaces, limits, disks, permissions and kills."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.demo import tiny_model
from tests.diagnosis.provoke.gang import Cause, Gang

STARTED = "Running training"
"""Text of a log when the training begins."""
_MEMORY, _PIDS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/pids")


def mounted(size: str, path: str) -> tuple[str, ...]:
    """Return a command prefix: a small tmpfs stands at `path`, seen by the command alone."""
    return ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs {path} && exec "$@"', "sh")


def _limited(controller: Path, file: str, value: str) -> Mapping[str, Any]:
    """Return the fields of a cause whose node 1 runs in a control group with a limit."""
    group = controller / "provoked"

    def prepare(gang: Gang) -> None:
        with suppress(OSError):
            group.rmdir()
        group.mkdir()
        (group / file).write_text(value)

    return {"prepare": prepare, "prefix": {1: ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")}}


def _take_port(gang: Gang) -> None:
    gang.servers.enter_context(socket.create_server(("127.0.0.1", gang.port)))


def _signal_rank(number: int, node: int) -> Callable[[Gang], None]:
    def during(gang: Gang) -> None:
        gang.wait_for(node, f"rank{node}.log", STARTED)
        os.kill(gang.pid_of(node, node), number)

    return during


def _hang_up(gang: Gang) -> None:
    gang.wait_for(0, "rank0.log", STARTED)
    os.kill(gang.processes[0].pid, signal.SIGHUP)


def many_rows(gang: Gang) -> None:
    """Give all nodes a data set that takes long to tokenise."""
    folder = gang.path("data")
    shutil.copytree(gang.work / tiny_model.DATA_FOLDER, folder)
    rows = tiny_model.make_rows(3000) * 30
    (folder / f"{tiny_model.DATASET}.json").write_text(json.dumps(rows))
    for config in gang.configs.values():
        config["dataset_dir"] = str(folder)


def _kill_worker(gang: Gang) -> None:
    # At 10 %: a worker that dies before its first task can leave the lock of the queue taken.
    gang.wait_for(0, "rank0.log", "Running tokenizer on dataset (num_proc=2):  1")
    rank = gang.pid_of(0, 0)
    workers = Path(f"/proc/{rank}/task/{rank}/children").read_text().split()
    os.kill(int(workers[0]), signal.SIGKILL)


def _foreign_cache(gang: Gang) -> None:
    cache = gang.path("cache")
    cache.mkdir()
    os.chown(cache, 65534, 65534)
    cache.chmod(0o755)


# root without these capabilities has the rights of a plain user.
_PLAIN_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner")

NODES: Mapping[str, Cause] = {
    "port-taken": Cause(
        category="port_taken",
        how="Another program listens on the master port of node 0.",
        node=0,
        prepare=_take_port,
    ),
    "rendezvous-timeout": Cause(
        category="rendezvous_timeout",
        how="The setup of node 1 takes longer than node 0 waits. The timeout is 20 s.",
        node=1,
        arguments={0: {"--rdzv_conf": "timeout=20"}},
        prefix={1: ("sh", "-c", 'sleep 90 && exec "$@"', "sh")},
    ),
    "master-port-differs-node1": Cause(
        category="master_unreachable",
        how="Node 1 was given a port on which nothing listens. The timeout is 20 s.",
        node=1,
        arguments={0: {"--rdzv_conf": "timeout=20"}, 1: {"--rdzv_conf": "timeout=20", "--master_port": "20999"}},
    ),
    "master-name-unknown-node1": Cause(
        category="master_unreachable",
        how="Node 1 was given a host name for the master that it cannot resolve. The timeout is 20 s.",
        node=1,
        arguments={0: {"--rdzv_conf": "timeout=20"}, 1: {"--rdzv_conf": "timeout=20", "--master_addr": "gpu-node-01"}},
    ),
    "ssh-not-ready": Cause(
        category="ssh_not_ready",
        how="DeepSpeed's launcher cannot log in on a node of its hostfile.",
        node=0,
        nodes=1,
        prepare=lambda gang: gang.path("hostfile").write_text("127.0.0.1 slots=1\nlocalhost slots=1\n") and None,
        prefix={0: ("deepspeed", "--hostfile", "$RUN/hostfile")},
        packages=("deepspeed",),
    ),
    "gloo-interface-node1": Cause(
        category="nccl_wrong_interface",
        how="GLOO_SOCKET_IFNAME names an interface that node 1 does not have.",
        node=1,
        rank=1,
        node_environment={1: {"GLOO_SOCKET_IFNAME": "eth9"}},
    ),
    "rank-sigkill": Cause(
        category=None,
        how="Rank 1 was killed by SIGKILL during the training.",
        node=1,
        rank=1,
        values={"training.max_steps": 3000, "training.save_steps": 3000},
        during=_signal_rank(signal.SIGKILL, 1),
    ),
    "rank-sigsegv": Cause(
        category=None,
        how="Rank 1 got SIGSEGV during the training.",
        node=1,
        rank=1,
        values={"training.max_steps": 3000, "training.save_steps": 3000},
        during=_signal_rank(signal.SIGSEGV, 1),
    ),
    "sighup": Cause(
        category="sighup",
        how="torchrun of node 0 got SIGHUP during the training, as when a terminal closes.",
        node=0,
        values={"training.max_steps": 3000, "training.save_steps": 3000},
        during=_hang_up,
    ),
    "host-memory-node1": Cause(
        category="host_oom",
        how="The control group of node 1 has a limit of 350 MB. The kernel killed the rank.",
        node=1,
        rank=1,
        **_limited(_MEMORY, "memory.limit_in_bytes", "350M"),
    ),
    "address-space-node1": Cause(
        category="host_oom",
        how="A limit of address space of 6 GB on node 1, and a model whose weights do not fit into it.",
        node=1,
        rank=1,
        prefix={1: ("prlimit", "--as=6000000000")},
        program="""
def train(folder, rank):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    if rank == 1:
        Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=8))
    torch.distributed.barrier()
""",
    ),
    "preprocess-worker-killed": Cause(
        category="preprocess_worker_died",
        how="One of two tokenising workers of rank 0 was killed by SIGKILL.",
        node=0,
        rank=0,
        values={"training.workers.preprocessing": 2},
        prepare=many_rows,
        during=_kill_worker,
    ),
    "shared-memory-small-node1": Cause(
        category="shm_small",
        how="/dev/shm of node 1 has 128 KiB, and two workers load the data.",
        node=1,
        rank=1,
        values={"training.workers.data_loader": 2, "training.micro_batch_size": 64, "training.cutoff_len": 512},
        prefix={1: mounted("128k", "/dev/shm")},
    ),
    "open-files-node1": Cause(
        category="open_files",
        how="Node 1 may have 40 files open, and eight workers load the data.",
        node=1,
        rank=1,
        values={"training.workers.data_loader": 8},
        prefix={1: ("prlimit", "--nofile=40:40")},
    ),
    "threads-node1": Cause(
        category="threads",
        how="The control group of node 1 has a limit of 12 threads.",
        node=1,
        rank=1,
        environment={"OMP_NUM_THREADS": "4"},
        values={"training.workers.data_loader": 4},
        **_limited(_PIDS, "pids.max", "12"),
    ),
    "disk-full-node0": Cause(
        category="disk_full",
        how="The output disk of node 0 has 300 kB.",
        node=0,
        rank=0,
        keys={"output_dir": "$RUN/out"},
        prepare=lambda gang: gang.path("out").mkdir(),
        prefix={0: mounted("300k", "$RUN/out")},
    ),
    "disk-full-optimizer-node0": Cause(
        category="disk_full",
        how="The output disk of node 0 has room for the weights, but not for the optimizer state.",
        node=0,
        rank=0,
        keys={"output_dir": "$RUN/out"},
        prepare=lambda gang: gang.path("out").mkdir(),
        prefix={0: mounted("1500k", "$RUN/out")},
    ),
    "read-only-output-node0": Cause(
        category="permission",
        how="The output folder of node 0 is on a file system that is mounted read-only.",
        node=0,
        rank=0,
        keys={"output_dir": "$RUN/out/demo"},
        prepare=lambda gang: gang.path("out").mkdir(),
        prefix={0: ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro tmpfs $RUN/out && exec "$@"', "sh")},
    ),
    "cache-permission-node1": Cause(
        category="permission",
        how="The cache of data sets on node 1 belongs to another user.",
        node=1,
        rank=1,
        prepare=_foreign_cache,
        node_environment={1: {"HF_DATASETS_CACHE": "$RUN/cache"}},
        prefix={1: _PLAIN_USER},
    ),
    "output-permission-node0": Cause(
        category="permission",
        how="The output folder of node 0 belongs to another user.",
        node=0,
        rank=0,
        keys={"output_dir": "$RUN/cache/demo"},
        prepare=_foreign_cache,
        prefix={0: _PLAIN_USER},
    ),
}
