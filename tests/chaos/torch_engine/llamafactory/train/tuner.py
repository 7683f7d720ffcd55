"""A stand-in that trains nothing. It runs an all-reduce over torch's gloo process group after every step."""

import os
import time
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist


def run_exp(args, callbacks):
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    total = int(os.environ["TRAINER_STEPS"])
    state = SimpleNamespace(global_step=0, max_steps=total, epoch=0.0, num_input_tokens_seen=0)
    control = SimpleNamespace(should_log=True, should_save=False, should_training_stop=False)
    (steps,) = callbacks
    steps.on_train_begin(args, state, control)
    while state.global_step < total and not control.should_training_stop:
        steps.on_step_begin(args, state, control)
        time.sleep(float(os.environ["TRAINER_STEP_S"]))
        dist.all_reduce(torch.ones(1000))
        state.global_step += 1
        steps.on_step_end(args, state, control)
        steps.on_log(args, state, control, logs={"loss": 5.0 / state.global_step})
        print(f"step {state.global_step}", flush=True)
    steps.on_train_end(args, state, control)
    dist.destroy_process_group()
