"""Program of one rank. torchrun starts `entry.py FOLDER` once per rank, and it trains by FOLDER/config.yaml.

FOLDER/rank<k>.log gets the rank's output, and FOLDER/steps.rank<k>.jsonl one line per optimizer step. When
FOLDER/control/stop exists on any node, all ranks save a checkpoint after the same step and end. This program needs the
engine, rank_facts.py, step_lines.py and, for ms-swift, swift_entry.py. It imports nothing else of Megaboard.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from typing import IO, Any


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    rank = int(os.environ["RANK"])
    _send_output_to(f"{folder}/rank{rank}.log")
    # The imports here and below come late, because the log gets their output.
    from torch.distributed.elastic.multiprocessing.errors import record

    # `record` sends the traceback of a failure to torchrun, which also prints it.
    record(_train)(folder, rank)


def _send_output_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the supervisor sends it at a stall
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _train(folder: str, rank: int) -> None:
    trainer, _, command = os.environ.get("MEGABOARD_TRAINER", "llamafactory").partition("-")
    if trainer == "llamafactory":
        _train_with_llamafactory(folder, rank)
    else:
        import swift_entry  # beside this file in the run folder

        train = swift_entry.train if trainer == "swift" else swift_entry.train_with_hugging_face
        train(sys.modules[__name__], folder, rank, command)


def _train_with_llamafactory(folder: str, rank: int) -> None:
    import yaml
    from llamafactory.train.tuner import run_exp

    with open(f"{folder}/config.yaml", encoding="utf-8") as file:
        config = yaml.safe_load(file)
    with open(f"{folder}/steps.rank{rank}.jsonl", "a", encoding="utf-8") as file:
        run_exp(args=config, callbacks=[make_callback(folder, file, rank)])


def mark_stopped(folder: str) -> None:
    """Record for the supervisor that a stop was requested."""
    os.makedirs(f"{folder}/control", exist_ok=True)
    with open(f"{folder}/control/stopped", "a"):
        pass


def make_callback(folder: str, file: IO[str], rank: int) -> Any:
    """Return the callback of a Hugging Face trainer that writes the steps to `file`."""
    from transformers import TrainerCallback

    class Callback(Steps, TrainerCallback):  # type: ignore[misc]
        """A class of transformers, which is imported late."""

    return Callback(folder, file, rank)


class Steps:
    """Write a line per step, and end the training after a stop request. Trainers call on_step_end, then on_log."""

    def __init__(self, folder: str, file: IO[str], rank: int) -> None:
        from step_lines import StepLines  # beside this file in the run folder

        self.folder, self.rank = folder, rank
        self.lines = StepLines(file, rank)
        self.begun = time.perf_counter()
        self.tokens_before, self.saved = 0, ""
        self.first: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        from rank_facts import masked_rows

        self.tokens_before = state.num_input_tokens_seen
        if self.rank == 0:
            self.first = masked_rows(getattr(kwargs.get("train_dataloader"), "dataset", None))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.lines.begin_step()
        self.begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        import torch
        from rank_facts import memory, room

        row = {
            "step": state.global_step,
            "total_steps": state.max_steps,
            "time": time.time(),
            "step_s": time.perf_counter() - self.begun,
            "epoch": state.epoch,
            **memory(torch),
            **self.first,
            **room(self.saved),  # all ranks have written their parts before this step ended
        }
        self.saved, self.first = "", {}
        # The sum over all ranks. It is 0 where the engine does not count tokens.
        tokens, self.tokens_before = state.num_input_tokens_seen - self.tokens_before, state.num_input_tokens_seen
        if tokens:
            row["tokens"] = tokens
        self.lines.end_step(row, is_logged=control.should_log)
        if any_rank_says(os.path.exists(f"{self.folder}/control/stop"), torch):
            control.should_save = control.should_training_stop = True
            mark_stopped(self.folder)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.lines.log(state.global_step, logs)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saved = f"{args.output_dir}/checkpoint-{state.global_step}"
        self.lines.log(state.global_step, {"checkpoint": state.global_step})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.lines.write()


def any_rank_says(mine: bool, torch: Any) -> bool:
    """Return whether `mine` is true on any rank. All ranks get the same answer, at the same step."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return mine
    # NCCL reduces only on the GPU. "cpu:gloo,cuda:nccl" also reduces on the CPU, which then waits for no kernel.
    on_cpu = "gloo" in distributed.get_backend_config() or not torch.cuda.is_available()
    flag = torch.tensor(int(mine), device="cpu" if on_cpu else "cuda")
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item())


if __name__ == "__main__":
    main()
