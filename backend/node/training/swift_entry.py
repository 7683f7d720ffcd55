"""Training with ms-swift for entry.py, with the same lines per step and the same stop.

The part for Megatron has not been tested with ms-swift's Megatron, which needs Transformer Engine and GPUs. The order
of the calls follows ms-swift 4.6.0 swift/megatron/trainers/base.py (run_train_step).
"""

from __future__ import annotations

import os
import time
from typing import IO, Any

HUGGING_FACE_MAINS = {"sft": "sft_main", "pt": "pretrain_main", "rlhf": "rlhf_main"}
MAINS = {"sft": "megatron_sft_main", "pt": "megatron_pretrain_main", "rlhf": "megatron_rlhf_main"}
CALLBACK = "megaboard"


def train(entry: Any, folder: str, rank: int, command: str) -> None:
    """Run `megatron sft|pt|rlhf` on FOLDER/config.yaml. `entry` is the module of entry.py."""
    from swift import megatron
    from swift.cli.main import parse_yaml_args
    from swift.megatron.callbacks.mapping import megatron_callbacks_map

    arguments = [f"{folder}/config.yaml"]
    parse_yaml_args(arguments)
    with open(f"{folder}/steps.rank{rank}.jsonl", "a", encoding="utf-8") as file:
        megatron_callbacks_map[CALLBACK] = make_callback(entry, folder, file, rank)
        getattr(megatron, MAINS[command])([*arguments, "--callbacks", CALLBACK])


def train_with_hugging_face(entry: Any, folder: str, rank: int, command: str) -> None:
    """Run `swift sft|pt|rlhf` on FOLDER/config.yaml."""
    from swift import pipelines
    from swift.callbacks import callbacks_map
    from swift.cli.main import parse_yaml_args

    arguments = [f"{folder}/config.yaml"]
    parse_yaml_args(arguments)
    with open(f"{folder}/steps.rank{rank}.jsonl", "a", encoding="utf-8") as file:
        callback = entry.make_callback(folder, file, rank)
        callbacks_map[CALLBACK] = lambda args, trainer: callback
        getattr(pipelines, HUGGING_FACE_MAINS[command])([*arguments, "--callbacks", CALLBACK])


def make_callback(entry: Any, folder: str, file: IO[str], rank: int) -> type:
    import torch
    from rank_facts import memory
    from step_lines import StepLines
    from swift.megatron.callbacks.base import MegatronCallback

    lines = StepLines(file, rank)

    class Steps(MegatronCallback):  # type: ignore[misc]
        """Write a line per step, and end the training after a stop request. Trainers call on_step_end, then on_log."""

        begun = 0.0

        def on_step_begin(self) -> None:
            lines.begin_step()
            self.begun = time.perf_counter()

        def on_step_end(self) -> None:
            row = {
                "step": self.state.iteration,
                "total_steps": self.args.train_iters,
                "time": time.time(),
                "step_s": time.perf_counter() - self.begun,
                **memory(torch),
            }
            lines.end_step(row, is_logged=True)
            if entry.any_rank_says(os.path.exists(f"{folder}/control/stop"), torch):
                # The loop runs up to train_iters. It saves a checkpoint before it reads train_iters again.
                self.state.should_save = True
                self.args.train_iters = self.state.iteration
                entry.mark_stopped(folder)

        def on_log(self, logs: dict[str, Any]) -> None:
            lines.log(self.state.iteration, logs)

        def on_train_end(self) -> None:
            lines.write()

    return Steps
