"""A stand-in for torchrun: same arguments and files, ranks in lockstep over TCP, and no training.

It starts one rank per node, in its own session, with a child like a DataLoader's worker. After every step all ranks
meet at rank 0, as in an all-reduce: a dead rank ends the others with an error, a silent rank stops them. It runs
TRAINER_STEPS steps of TRAINER_STEP_S seconds and writes TRAINER_LOG_BYTES more bytes of log in each step. On a node
with the file SLOW, a step takes three times as long.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from stand_in import torchrun_options, write_step

SLOW = Path("/run/local/slow")


def main() -> int:
    options = torchrun_options()
    gang = [options.node_rank, options.nnodes, options.master_addr, options.master_port]
    command = [sys.executable, "-S", "-B", __file__, "worker", options.folder, *map(str, gang)]
    worker = subprocess.Popen(command, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
    code = worker.wait()
    if code < 0:  # As torch/distributed/elastic/multiprocessing/api.py.
        number = signal.Signals(-code)
        print(
            f"  exitcode  : {code} (pid: {worker.pid})\n  Signal {-code} ({number.name}) received by PID {worker.pid}"
        )
    return 1 if code else 0


class Gang:
    """The connections of rank 0 to every other rank."""

    def __init__(self, rank: int, size: int, address: str, port: int) -> None:
        self.rank = rank
        if rank == 0:
            with socket.create_server(("", port)) as server:
                self.others = [server.accept()[0].makefile("rwb") for _ in range(size - 1)]
        else:
            self.others = [_dial(address, port).makefile("rwb")]

    def any_says(self, mine: bool) -> bool:
        """Return whether the value is true on any rank. Every rank waits for every other."""
        if self.rank:
            self._say(mine)
            return self._hear()[0]
        is_said = any([mine, *self._hear()])
        self._say(is_said)
        return is_said

    def _say(self, value: bool) -> None:
        for other in self.others:
            other.write(b"1" if value else b"0")
            other.flush()

    def _hear(self) -> list[bool]:
        heard = [other.read(1) for other in self.others]
        if b"" in heard:
            raise ConnectionError("Connection closed by peer")
        return [answer == b"1" for answer in heard]


def _dial(address: str, port: int) -> socket.socket:
    while True:
        dialling = socket.socket()
        # gloo, too, binds to the interface that it is told.
        dialling.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.environ["GLOO_SOCKET_IFNAME"].encode())
        try:
            dialling.connect((address, port))
            return dialling
        except ConnectionRefusedError:
            dialling.close()
            time.sleep(0.05)


def train(folder: Path, rank: int, size: int, address: str, port: int) -> None:
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    loader = f"import os, time\nwhile os.getppid() == {os.getpid()}: time.sleep(0.1)\ntime.sleep(600)"
    child = subprocess.Popen([sys.executable, "-S", "-c", loader, "loader"])
    try:
        _steps(folder, rank, Gang(rank, size, address, port))
    except Exception:
        traceback.print_exc()
        os._exit(1)  # The child stays, as after a crash.
    child.kill()
    child.wait()


def _steps(folder: Path, rank: int, gang: Gang) -> None:
    total = int(os.environ.get("TRAINER_STEPS", "20"))
    noise = "x" * int(os.environ.get("TRAINER_LOG_BYTES", "0"))
    with open(folder / f"steps.rank{rank}.jsonl", "a") as steps:
        for step in range(1, total + 1):
            began = time.monotonic()
            time.sleep(float(os.environ.get("TRAINER_STEP_S", "0.05")) * (3 if SLOW.exists() else 1))
            stop = gang.any_says((folder / "control/stop").exists())
            write_step(steps, step, total, time.monotonic() - began)
            print(f"step {step}{noise}", flush=True)
            if stop:
                (folder / "control/stopped").touch()
                return


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        train(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
    else:
        sys.exit(main())
