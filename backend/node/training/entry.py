"""Runs on a node, once per rank, started by torchrun: `entry.py FOLDER` trains what FOLDER/config.yaml says.

Everything the rank prints goes to FOLDER/rank<k>.log. FOLDER/steps.rank<k>.jsonl gets one line per optimizer step. When
FOLDER/control/stop exists on any node, all ranks end together after the same step, with a checkpoint. This file,
rank_facts.py, for ms-swift swift_entry.py, and the engine are all that is needed; nothing of Megaboard is imported.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from typing import IO, Any

PROTOCOL = 1
LOGGED = ("loss", "grad_norm", "learning_rate", "token_per_sec_per_gpu")


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    rank = int(os.environ["RANK"])
    _send_output_to(f"{folder}/rank{rank}.log")
    # Imported late, here and below: what imports print belongs into the log.
    from torch.distributed.elastic.multiprocessing.errors import record

    # `record` hands the traceback of a failure to torchrun, which prints it on its own console too.
    record(_train)(folder, rank)


def _send_output_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the supervisor asks at a stall
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _train(folder: str, rank: int) -> None:
    trainer, _, command = os.environ.get("MEGABOARD_TRAINER", "llamafactory").partition("-")
    if trainer != "swift":
        _train_with_llamafactory(folder, rank)
    else:
        from swift_entry import train  # beside this file in the run folder

        train(sys.modules[__name__], folder, rank, command)


def _train_with_llamafactory(folder: str, rank: int) -> None:
    import yaml
    from llamafactory.train.tuner import run_exp

    with open(f"{folder}/config.yaml", encoding="utf-8") as file:
        config = yaml.safe_load(file)
    with open(f"{folder}/steps.rank{rank}.jsonl", "a", encoding="utf-8") as file:
        run_exp(args=config, callbacks=[_make_callback(folder, file)])


def mark_stopped(folder: str) -> None:
    """The supervisor reads it: this end was asked for."""
    os.makedirs(f"{folder}/control", exist_ok=True)
    with open(f"{folder}/control/stopped", "a"):
        pass


def _make_callback(folder: str, file: IO[str]) -> Any:
    import torch
    from rank_facts import memory, room  # beside this file in the run folder
    from transformers import TrainerCallback

    class Steps(TrainerCallback):  # type: ignore[misc]
        """Writes a line per step and ends the training when asked. Trainers call on_step_end, then on_log."""

        def __init__(self) -> None:
            self.begun = time.perf_counter()
            self.tokens_before = 0
            self.saved = ""
            self.row: dict[str, Any] | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.tokens_before = state.num_input_tokens_seen

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.write()
            self.begun = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.row = {
                "protocol": PROTOCOL,
                "step": state.global_step,
                "total_steps": state.max_steps,
                "time": time.time(),
                "step_s": time.perf_counter() - self.begun,
                "epoch": state.epoch,
                **memory(torch),
                **room(self.saved),  # by now all ranks have written their parts
            }
            self.saved = ""
            # Counted over all ranks, only where the engine was told to count.
            tokens, self.tokens_before = state.num_input_tokens_seen - self.tokens_before, state.num_input_tokens_seen
            if tokens:
                self.row["tokens"] = tokens
            if not control.should_log:
                self.write()
            if any_rank_says(os.path.exists(f"{folder}/control/stop"), torch):
                control.should_save = control.should_training_stop = True
                mark_stopped(folder)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if self.row and logs and "loss" in logs:
                self.row.update({key: float(logs[key]) for key in LOGGED if logs.get(key) is not None})
                self.write()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.saved = f"{args.output_dir}/checkpoint-{state.global_step}"

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.write()

        def write(self) -> None:
            if self.row:
                file.write(json.dumps(self.row) + "\n")
                file.flush()
            self.row = None

    return Steps()


def any_rank_says(mine: bool, torch: Any) -> bool:
    """Whether it is true on any rank: all ranks get the same answer, at the same step."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return mine
    # NCCL reduces on the GPU alone; "cpu:gloo,cuda:nccl" can do both, and then the CPU waits for no kernel.
    on_cpu = "gloo" in distributed.get_backend_config() or not torch.cuda.is_available()
    flag = torch.tensor(int(mine), device="cpu" if on_cpu else "cuda")
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item())


if __name__ == "__main__":
    main()
