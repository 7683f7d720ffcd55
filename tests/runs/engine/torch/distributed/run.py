"""A stand-in for torchrun that trains nothing: same arguments, same files, a worker per rank in its own session.

TRAINER_MODE is ok | fail | hang | stubborn (ignores TERM) | orphan (a worker's child in a session of its own) | killed
(by SIGKILL in step 8 of the first attempt). `fail@1` means only node 1; the other nodes do `ok`. Commas separate
several modes. It runs TRAINER_STEPS steps of TRAINER_STEP_S seconds and writes a checkpoint every TRAINER_SAVE steps.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from stand_in import torchrun_options, write_step


def main() -> int:
    options = torchrun_options()
    first = options.node_rank * options.nproc_per_node
    command = [sys.executable, "-S", "-B", __file__, "worker", options.folder, str(options.node_rank)]
    workers = [
        subprocess.Popen([*command, str(rank)], start_new_session=True)
        for rank in range(first, first + options.nproc_per_node)
    ]
    signal.signal(signal.SIGTERM, lambda *_: [worker.terminate() for worker in workers])
    print("torchrun stand-in started", flush=True)
    ends = [worker.wait() for worker in workers]
    if -signal.SIGKILL in ends:
        print("  exitcode  : -9 (pid: 1)", flush=True)
    return max(map(abs, ends))


def train(folder: Path, node: str, rank: int) -> None:
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    modes = [mode.partition("@") for mode in os.environ.get("TRAINER_MODE", "ok").split(",")]
    mode = next((mode for mode, _, where in modes if where in ("", node)), "ok")
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "orphan":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    total, every = int(os.environ.get("TRAINER_STEPS", "20")), int(os.environ.get("TRAINER_SAVE", "0"))
    config = dict(line.split(": ", 1) for line in (folder / "config.yaml").read_text().splitlines() if ": " in line)
    begun = int(config.get("resume_from_checkpoint", "-0").rpartition("-")[2])
    with open(folder / f"steps.rank{rank}.jsonl", "a") as steps:
        for step in range(begun + 1, total + 1):
            time.sleep(float(os.environ.get("TRAINER_STEP_S", "0.05")))
            write_step(steps, step, total)
            if mode == "fail" and step == 5:
                raise ModuleNotFoundError("No module named 'gone'")
            if mode == "killed" and step == 8 and folder.parent.name == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            if every and step % every == 0:
                save(Path(config["output_dir"]) / f"checkpoint-{step}", rank, step)
            if mode == "hang" and step == 5:
                time.sleep(600)
            if (folder / "control/stop").exists():
                (folder / "control/stopped").touch()
                print("saved", flush=True)
                return


def save(folder: Path, rank: int, step: int) -> None:
    """Write the checkpoint files of transformers' trainer, as far as a reader without torch can check them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rng_state_{rank}.pth").write_bytes(b".")
    if rank == 0:
        for name in ("optimizer.pt", "scheduler.pt", "pytorch_model.bin"):
            (folder / name).write_bytes(b".")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        train(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main())
