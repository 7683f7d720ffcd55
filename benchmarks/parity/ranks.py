"""Train tiny jobs with LLaMA-Factory on CPU ranks of this machine. A node's Python runs this file.

It reads {name: {"ranks", "environment", "config", "folder"}} from stdin and prints one line for each case:
`RESULT {"name", "steps", "error"}`. A step has the logged loss and gradient norm, and the squared gradient norm by part
of the model, over all ranks, before clipping. The ranks are forked after the imports, which take most of the time.
Each rank's output is in `rank<k>.log` of the case's folder. USE_MCA must be set before the start, because
LLaMA-Factory reads it at its import.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import gradients
import torch
from llamafactory.train.tuner import run_exp
from transformers import TrainerCallback

FORK = multiprocessing.get_context("fork")
LIMIT_S = 300


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Keeps what each step logs, and the gradients before the optimizer changes them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.parts: dict[str, float] = {}

    def keep(self, parts: dict[str, float]) -> None:
        self.parts = parts

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        # DeepSpeed has stepped already: its own hook kept the gradients.
        if not hasattr(model, "_zero_grad_kept"):
            self.parts = gradients.of_torch(model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        # A distributed optimizer leaves each rank a part of every bucket.
        if "mcore_adapter" in sys.modules and not args.use_distributed_optimizer:
            self.parts = gradients.of_megatron(getattr(model, "models", [model])[0])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            logged = {key: value for key, value in logs.items() if isinstance(value, int | float)}
            self.steps.append({"step": state.global_step, **logged, "parts": self.parts})


def main() -> None:
    for name, case in json.load(sys.stdin).items():
        result = {"name": name, **(run_and_resume(case) if case["stop_at"] else run(case))}
        print(f"RESULT {json.dumps(result)}", flush=True)


def run_and_resume(case: dict[str, Any]) -> dict[str, Any]:
    """Run to a checkpoint, then on from it, and return the steps of both."""
    steps = {"save_steps": case["stop_at"]}
    first = run({**case, "config": {**case["config"], **steps, "max_steps": case["stop_at"]}})
    checkpoint = f"{case['config']['output_dir']}/checkpoint-{case['stop_at']}"
    second = run({**case, "config": {**case["config"], **steps, "resume_from_checkpoint": checkpoint}})
    return {"steps": first["steps"] + second["steps"], "error": first["error"] or second["error"]}


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Fork the ranks of a case and return rank 0's steps, or the error of the first rank that has one."""
    files = [Path(case["folder"]) / f"rank{rank}.json" for rank in range(case["ranks"])]
    for file in files:
        file.unlink(missing_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [FORK.Process(target=train, args=(case, rank, port)) for rank in range(case["ranks"])]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(LIMIT_S)
        # The others wait for a rank that has failed.
        if process.exitcode != 0:
            for other in ranks:
                kill_group(other)
    results = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    failed = [result["error"] for result in results if "error" in result]
    missing = [rank for rank, result in enumerate(results) if not result]
    if failed or missing:
        return {"steps": [], "error": failed[0] if failed else f"no result of ranks {missing}"}
    return {"steps": results[0]["steps"], "error": ""}


def kill_group(process: Any) -> None:
    """Kill a rank that still runs, with the processes that it started."""
    if process.is_alive():
        process.kill()
        with contextlib.suppress(ProcessLookupError):  # It had no group of its own yet.
            os.killpg(process.pid, signal.SIGKILL)


def end_children() -> None:
    """End the processes that this rank started. Megatron-Core's checkpoints leave the server of a queue
    (dist_checkpointing/strategies/filesystem_async.py), which a regular end of Python would stop."""
    for child in multiprocessing.active_children():
        child.terminate()
        child.join()


def train(case: dict[str, Any], rank: int, port: int) -> None:
    """Be one rank, as torchrun would start it."""
    os.setpgid(0, 0)
    folder = Path(case["folder"])
    os.chdir(folder)
    log = os.open(f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    ranks = str(case["ranks"])
    numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({**case["environment"], **numbers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        import sitecustomize  # of tests/e2e/proof

        sitecustomize._let_accelerate_shard_on_cpu()
    recorder = Recorder()
    if "deepspeed" in case["config"]:
        gradients.hook_deepspeed(recorder.keep)
    try:
        run_exp(args=dict(case["config"]), callbacks=[recorder])
        result: dict[str, Any] = {"steps": recorder.steps}
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:500]}
    Path(f"rank{rank}.json").write_text(json.dumps(result))
    sys.stdout.flush()
    end_children()
    # Ranks that ended well wait for each other in destructors of groups.
    os._exit(1 if "error" in result else 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if os.environ.get("MEGATRON_ON_CPU") == "1":
        import megatron_on_cpu  # of tests/e2e/proof

        megatron_on_cpu.patch_norms()
        megatron_on_cpu.patch_resume()
    main()
